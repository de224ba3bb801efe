"""The classifier head alone: from the embedding to the logits, as the file computes it.

It is cut out of the file rather than rebuilt from its weights, so that its answer to an untouched
embedding is the model's own, in whatever arithmetic the file was quantized to.
"""

from typing import TYPE_CHECKING

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, Floats
from zotta_edge.runtime.engine.engine import Engine, TensorSession

if TYPE_CHECKING:  # needs the onnx package, which a start from the cache does not load
    from onnx import ModelProto, NodeProto

_ROUNDING = 0.05  # of the logits, relative: more than any 8-bit head shows


class Head:
    """logits = head(embedding), [batch, D] -> [batch, class].

    >>> from zotta_edge.models import embedded
    >>> engine = Engine.open(embedded.MODEL)
    >>> outputs = engine.cone(engine.stem(np.zeros((4, 1, 32, 32), np.float32)), {})
    >>> bool(np.allclose(Head.open(engine)(outputs.embedding), outputs.logits, atol=0.05))
    True
    """

    def __init__(self, graph: TensorSession) -> None:
        self._graph = graph
        self.channels: int = graph.shape(EMBEDDING)[1]  # D

    @classmethod
    def open(cls, engine: Engine) -> "Head":
        return cls(engine.file.rewritten("head", _extract))

    def __call__(self, embedding: Floats) -> Floats:
        return self._graph({EMBEDDING: np.asarray(embedding, np.float32)})[LOGITS]

    def weights(self) -> tuple[Floats, Floats]:
        """W [D, class] and b [class] of logits = embedding W + b.

        They are the answers to the unit vectors and to zero: 8-bit activations hold 0 and 1 without
        rounding, so these are the dequantized weights up to float32's own.
        """
        answers = self(np.eye(self.channels + 1, self.channels, dtype=np.float32))
        weight, bias = answers[:-1] - answers[-1], answers[-1]
        self._check_linear(weight, bias)
        return weight, bias

    def _check_linear(self, weight: Floats, bias: Floats) -> None:
        trial = np.random.default_rng(0).standard_normal((8, self.channels), dtype=np.float32)
        expected = trial @ weight + bias
        if np.linalg.norm(self(trial) - expected) > _ROUNDING * np.linalg.norm(expected):
            raise ZottaError(
                "the model does not end in a linear classifier, which this method needs: "
                "use another method"
            )


def _extract(content: bytes, path: str) -> bytes:
    """The nodes between the embedding and the logits."""
    from zotta_edge.graph.subgraph import build, live, parse

    model = parse(content, path)
    pool = next(node for node in model.graph.node if EMBEDDING in node.output)
    pooled = pool.input[0]  # what the classifier reads; the embedding is its mean, or itself
    nodes = [node for node in model.graph.node if node != pool and pooled not in node.output]
    nodes = live([_unpool(model, pool), *_unrounded(nodes)], [LOGITS])
    if any(IMAGE in node.input for node in nodes):
        raise ZottaError(
            f"the classifier of {path} reads more than the embedding: use another method"
        )
    head = build(model, nodes, [EMBEDDING], [LOGITS])
    return bytes(head.SerializeToString(deterministic=True))


def _unrounded(nodes: "list[NodeProto]") -> "list[NodeProto]":
    """Without QuantizeLinear and its DequantizeLinear: a fixed range clips the unit vectors.

    Files that another tool quantized have them around the classifier's product.
    """
    from onnx import helper

    coded: set[str] = set()
    unrounded = []
    for node in nodes:
        ends = node.op_type == "DequantizeLinear" and node.input[0] in coded
        if node.op_type == "QuantizeLinear" or (node.input[:1] and node.input[0] in coded):
            coded.update(() if ends else node.output)
        plain = ends or node.op_type == "QuantizeLinear"
        copy = helper.make_node("Identity", node.input[:1], node.output) if plain else node
        unrounded.append(copy)
    return unrounded


def _unpool(model: "ModelProto", pool: "NodeProto") -> "NodeProto":
    """The embedding where the pooled tensor was: a mean over one place is that place."""
    from onnx import helper, numpy_helper

    axes = [list(item.ints) for item in pool.attribute if item.name == "axes"]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    axes += [numpy_helper.to_array(stored[name]).tolist() for name in pool.input[1:]]
    if pool.op_type == "Identity" or not axes:
        return helper.make_node("Identity", [EMBEDDING], pool.input[:1])
    shape = [0, *(1 if axis in axes[0] else -1 for axis in range(1, len(axes[0]) + 2))]
    name = f"{EMBEDDING}.shape"
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    return helper.make_node("Reshape", [EMBEDDING, name], pool.input[:1])
