"""Let the BatchNorms of a model use other statistics than the source's.

The exporter leaves a BatchNorm as `hat`, normalized by the source's statistics (most often folded
into the weights before it), then its scale and shift. Seen in units of `hat` the source has mean 0
and variance 1, so a mixture needs nothing but `hat` itself.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, ModelInfo, Norm, from_metadata
from zotta_edge.graph.index import Graph
from zotta_edge.graph.subgraph import build, live, parse

SHARE = "zotta.share"  # the input that is added
SHARES = "zotta.shares."  # before a norm's name: inputs, one share a channel
EPSILON = 1e-5  # of BatchNorm; the file keeps none, and in units of `hat` it hardly counts
_LAYOUT = ("Transpose", "Reshape", "Identity", "Cast")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "BatchNormalization")


@dataclass(frozen=True)
class BatchNorm:
    name: str
    product: NodeProto  # scale * hat
    hat: str
    axes: list[int]  # all but the channels'
    channels: int


# Rewrites all norms; gives the inputs and the outputs that it added, float all, with their shapes.
Shapes = dict[str, list[int | str]]
Change = Callable[[Graph, Sequence[BatchNorm]], tuple[Shapes, Shapes]]


def has_batch_norms(path: Path) -> bool:
    model = parse(path.read_bytes(), str(path))
    return bool(_batch_norms(Graph(model), _info(model, str(path))))


def rewritten(content: bytes, path: str, method: str, change: Change) -> bytes:
    """The same model with other statistics in its BatchNorms."""
    model = parse(content, path)
    graph, info = Graph(model), _info(model, path)
    norms = _batch_norms(graph, info)
    if not norms:
        raise ZottaError(
            f"{path} has no BatchNorm, whose statistics {method} replaces: use another method"
        )
    inputs, more = change(graph, norms)
    declared = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (inputs | more).items()
    }
    outputs = [LOGITS, *(layer.feature for layer in info.layers), EMBEDDING, *more]
    changed = build(model, live(graph.nodes, outputs), [IMAGE, *inputs], outputs, declared)
    return bytes(changed.SerializeToString(deterministic=True))


def with_batch_statistics(content: bytes, path: str, method: str = "bn_adapt") -> bytes:
    """The same model with one input more, SHARE [1]: w, the batch's part of the statistics."""
    return rewritten(content, path, method, _mix_all)


def with_channel_shares(content: bytes, path: str, method: str) -> bytes:
    """The same model with an input more for each norm, SHARES + its name [C]: alpha."""
    return rewritten(content, path, method, _interpolate_all)


class Writer:
    """Nodes before one norm, the last of which takes the place of its `hat`."""

    def __init__(self, graph: Graph, norm: BatchNorm) -> None:
        self.graph, self.norm, self._nodes = graph, norm, list[NodeProto]()

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self.norm.hat}.b{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value: float) -> str:
        return self.graph.add_constant(f"zotta.{value:g}", np.array([value], np.float32))

    def mean(self, x: str, axes: Sequence[int]) -> str:
        return self._reduced("ReduceMean", x, axes)

    def moments(self, axes: Sequence[int]) -> tuple[str, str]:
        """Mean and variance of `hat`, over some axes, which stay."""
        mu = self.mean(self.norm.hat, axes)
        centred = self.op("Sub", self.norm.hat, mu)
        return mu, self.mean(self.op("Mul", centred, centred), axes)

    def normalized(self, mean: str, variance: str) -> None:
        """hat <- (hat - mean) / sqrt(variance)."""
        hat = self.norm.hat
        instead = self.op("Div", self.op("Sub", hat, mean), self.op("Sqrt", variance))
        product = self.norm.product
        self.graph.set_input(product, list(product.input).index(hat), instead)
        self.graph.insert_before(product, self._nodes)

    def _reduced(self, kind: str, x: str, axes: Sequence[int]) -> str:
        if self.graph.opset < 18:
            return self.op(kind, x, axes=list(axes), keepdims=1)
        name = f"zotta.axes.{'.'.join(map(str, axes))}"
        which = self.graph.add_constant(name, np.array(axes, np.int64))
        return self.op(kind, x, which, keepdims=1)


def _mix_all(graph: Graph, norms: Sequence[BatchNorm]) -> tuple[Shapes, Shapes]:
    """Mean w mu, variance 1 - w + w (var + epsilon), mu and var those of the batch."""
    for norm in norms:
        write = Writer(graph, norm)
        mu, variance = write.moments(norm.axes)
        own = write.op("Mul", write.op("Add", variance, write.constant(EPSILON)), SHARE)
        mixed = write.op("Add", own, write.op("Sub", write.constant(1.0), SHARE))
        write.normalized(write.op("Mul", mu, SHARE), mixed)
    return {SHARE: [1]}, {}


def _interpolate_all(graph: Graph, norms: Sequence[BatchNorm]) -> tuple[Shapes, Shapes]:
    """TTN: mean a mu, variance 1 - a + a (var + epsilon) + a (1 - a) mu^2, a the channel's."""
    for norm in norms:
        write = Writer(graph, norm)
        mu, variance = write.moments(norm.axes)
        form = [1 if axis in norm.axes else -1 for axis in range(len(norm.axes) + 1)]
        shape = graph.add_constant(f"{norm.hat}.shares", np.array(form, np.int64))
        a = write.op("Reshape", SHARES + norm.name, shape)
        rest = write.op("Sub", write.constant(1.0), a)
        mean = write.op("Mul", a, mu)
        own = write.op("Mul", a, write.op("Add", variance, write.constant(EPSILON)))
        apart = write.op("Mul", rest, write.op("Mul", mean, mu))
        write.normalized(mean, write.op("Add", write.op("Add", own, rest), apart))
    return {SHARES + norm.name: [norm.channels] for norm in norms}, {}


def _info(model: ModelProto, path: str) -> ModelInfo:
    return from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)


def _batch_norms(graph: Graph, info: ModelInfo) -> list[BatchNorm]:
    norms = (_batch_norm(graph, norm) for norm in info.norms)
    return [norm for norm in norms if norm is not None]


def _batch_norm(graph: Graph, norm: Norm) -> BatchNorm | None:
    """Where its scale is applied; None: another kind of norm."""
    scale, channel = norm.scale, norm.shape.index(norm.channels, 1)
    product = graph.consumers[scale][0]
    if product.op_type == "Transpose":  # integer kernels have the channels last
        scale, channel = product.output[0], len(norm.shape) - 1
        product = graph.consumers[scale][0]
    hat = next(name for name in product.input if name != scale)
    axes = [axis for axis in range(len(norm.shape)) if axis != channel]
    return (
        BatchNorm(norm.name, product, hat, axes, norm.channels)
        if _from_weights(graph, hat)
        else None
    )


def _from_weights(graph: Graph, hat: str) -> bool:
    """What other norms leave comes from a norm of their own, or from a division."""
    node = graph.producers.get(hat)
    while node is not None and node.op_type in _LAYOUT:
        node = graph.producers.get(node.input[0])
    if node is None:
        return False
    # Integer kernels add their bias in a node of its own.
    biased = node.op_type == "Add" and any(graph.constant(x) is not None for x in node.input)
    return node.op_type in _WEIGHTED or biased
