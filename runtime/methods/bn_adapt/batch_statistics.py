"""Let the BatchNorms of a model use the statistics of the batch, mixed with the source's.

The exporter leaves a BatchNorm as `hat`, normalized by the source's statistics (most often folded
into the weights before it), then its scale and shift. Seen in units of `hat` the source has mean 0
and variance 1, so a mixture needs nothing but `hat` itself.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, ModelInfo, Norm, from_metadata
from zotta_edge.graph.index import Graph
from zotta_edge.graph.subgraph import build, live, parse

SHARE = "zotta.share"  # the input that is added
EPSILON = 1e-5  # of BatchNorm; the file keeps none, and in units of `hat` it hardly counts
_ONE, _EPSILON, _REST = f"{SHARE}.one", f"{SHARE}.epsilon", f"{SHARE}.rest"
_LAYOUT = ("Transpose", "Reshape", "Identity", "Cast")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "BatchNormalization")


@dataclass(frozen=True)
class _BatchNorm:
    product: NodeProto  # scale * hat
    hat: str
    axes: list[int]  # all but the channels'


def has_batch_norms(path: Path) -> bool:
    model = parse(path.read_bytes(), str(path))
    return bool(_batch_norms(Graph(model), _info(model, str(path))))


def with_batch_statistics(content: bytes, path: str) -> bytes:
    """The same model with one input more, SHARE [1]: w, the batch's part of the statistics."""
    model = parse(content, path)
    graph, info = Graph(model), _info(model, path)
    norms = _batch_norms(graph, info)
    if not norms:
        raise ZottaError(
            f"{path} has no BatchNorm, whose statistics bn_adapt replaces: use another method"
        )
    _add_scalars(graph)
    for norm in norms:
        _mix(graph, norm)
    outputs = [LOGITS, *(layer.feature for layer in info.layers), EMBEDDING]
    changed = build(model, live(graph.nodes, outputs), [IMAGE, SHARE], outputs)
    return bytes(changed.SerializeToString(deterministic=True))


def _info(model: ModelProto, path: str) -> ModelInfo:
    return from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)


def _batch_norms(graph: Graph, info: ModelInfo) -> list[_BatchNorm]:
    norms = (_batch_norm(graph, norm) for norm in info.norms)
    return [norm for norm in norms if norm is not None]


def _batch_norm(graph: Graph, norm: Norm) -> _BatchNorm | None:
    """Where its scale is applied; None: another kind of norm."""
    scale, channel = norm.scale, norm.shape.index(norm.channels, 1)
    product = graph.consumers[scale][0]
    if product.op_type == "Transpose":  # integer kernels have the channels last
        scale, channel = product.output[0], len(norm.shape) - 1
        product = graph.consumers[scale][0]
    hat = next(name for name in product.input if name != scale)
    axes = [axis for axis in range(len(norm.shape)) if axis != channel]
    return _BatchNorm(product, hat, axes) if _comes_from_weights(graph, hat) else None


def _comes_from_weights(graph: Graph, hat: str) -> bool:
    """What other norms leave comes from a norm of their own, or from a division."""
    node = graph.producers.get(hat)
    while node is not None and node.op_type in _LAYOUT:
        node = graph.producers.get(node.input[0])
    if node is None:
        return False
    # Integer kernels add their bias in a node of its own.
    biased = node.op_type == "Add" and any(graph.constant(x) is not None for x in node.input)
    return node.op_type in _WEIGHTED or biased


def _add_scalars(graph: Graph) -> None:
    for name, value in ((_ONE, 1.0), (_EPSILON, EPSILON)):
        graph.add_constant(name, np.array([value], np.float32))
    share = helper.make_tensor_value_info(SHARE, TensorProto.FLOAT, [1])
    graph.model.graph.input.append(share)
    graph.insert_after(SHARE, [helper.make_node("Sub", [_ONE, SHARE], [_REST])])


def _mix(graph: Graph, norm: _BatchNorm) -> None:
    """hat <- (hat - w mu) / sqrt(1 - w + w (var + epsilon)), mu and var those of the batch."""
    hat, nodes = norm.hat, list[NodeProto]()

    def made(op: str, *inputs: str) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{hat}.b{len(nodes)}"]))
        return str(nodes[-1].output[0])

    def mean(x: str) -> str:
        nodes.append(_mean(graph, x, norm.axes, f"{hat}.b{len(nodes)}"))
        return str(nodes[-1].output[0])

    mu = mean(hat)
    centred = made("Sub", hat, mu)
    variance = made("Add", mean(made("Mul", centred, centred)), _EPSILON)
    mixed = made("Add", made("Mul", variance, SHARE), _REST)
    moved = made("Sub", hat, made("Mul", mu, SHARE))
    renormalized = made("Div", moved, made("Sqrt", mixed))
    graph.set_input(norm.product, list(norm.product.input).index(hat), renormalized)
    graph.insert_before(norm.product, nodes)


def _mean(graph: Graph, x: str, axes: list[int], output: str) -> NodeProto:
    if graph.opset < 18:
        return helper.make_node("ReduceMean", [x], [output], axes=axes, keepdims=1)
    name = graph.add_constant(f"{output}.axes", np.array(axes, np.int64))
    return helper.make_node("ReduceMean", [x, name], [output], keepdims=1)
