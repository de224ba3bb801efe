"""Let the BatchNorms of a model use the statistics of the batch, mixed with the source's.

The exporter leaves a BatchNorm as `hat`, normalized by the source's statistics (most often folded
into the weights before it), then its scale and shift. Seen in units of `hat` the source has mean 0
and variance 1, so a mixture needs nothing but `hat` itself.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, ModelInfo, Norm, from_metadata
from zotta_edge.graph.nodes import opset
from zotta_edge.graph.subgraph import build, live, parse
from zotta_edge.runtime.methods.bn_adapt.method import SHARE

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
    return bool(_batch_norms(model, _info(model, str(path))))


def with_batch_statistics(content: bytes, path: str) -> bytes:
    """The same model with one input more, SHARE [1]: w, the batch's part of the statistics."""
    model = parse(content, path)
    info = _info(model, path)
    found = _batch_norms(model, info)
    if not found:
        raise ZottaError(
            f"{path} has no BatchNorm, whose statistics bn_adapt replaces: use another method"
        )
    _add_scalars(model)
    for one in found:
        _mix(model, one)
    outputs = [LOGITS, *(layer.feature for layer in info.layers), EMBEDDING]
    made = build(model, live(model.graph.node, outputs), [IMAGE, SHARE], outputs)
    return bytes(made.SerializeToString(deterministic=True))


def _info(model: ModelProto, path: str) -> ModelInfo:
    return from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)


def _batch_norms(model: ModelProto, info: ModelInfo) -> list[_BatchNorm]:
    return [one for norm in info.norms if (one := _batch_norm(model, norm))]


def _batch_norm(model: ModelProto, norm: Norm) -> _BatchNorm | None:
    """Where its scale is applied; None: another kind of norm."""
    scale, channel = norm.scale, norm.shape.index(norm.channels, 1)
    product = _reader(model, scale)
    if product.op_type == "Transpose":  # integer kernels have the channels last
        scale, channel = product.output[0], len(norm.shape) - 1
        product = _reader(model, scale)
    hat = next(read for read in product.input if read != scale)
    axes = [axis for axis in range(len(norm.shape)) if axis != channel]
    return _BatchNorm(product, hat, axes) if _comes_from_weights(model, hat) else None


def _reader(model: ModelProto, name: str) -> NodeProto:
    reader: NodeProto = next(node for node in model.graph.node if name in node.input)
    return reader


def _comes_from_weights(model: ModelProto, hat: str) -> bool:
    """What other norms leave comes from a norm of their own, or from a division."""
    producers = {name: node for node in model.graph.node for name in node.output}
    node = producers.get(hat)
    while node is not None and node.op_type in _LAYOUT:
        node = producers.get(node.input[0])
    if node is None:
        return False
    constants = {tensor.name for tensor in model.graph.initializer}
    biased = node.op_type == "Add" and not constants.isdisjoint(node.input)  # an integer kernel's
    return node.op_type in _WEIGHTED or biased


def _add_scalars(model: ModelProto) -> None:
    for name, value in ((_ONE, 1.0), (_EPSILON, EPSILON)):
        array = np.array([value], np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.input.append(helper.make_tensor_value_info(SHARE, TensorProto.FLOAT, [1]))
    model.graph.node.insert(0, helper.make_node("Sub", [_ONE, SHARE], [_REST]))


def _mix(model: ModelProto, norm: _BatchNorm) -> None:
    """hat <- (hat - w mu) / sqrt(1 - w + w (var + epsilon)), mu and var those of the batch."""
    hat, nodes = norm.hat, list[NodeProto]()

    def made(op: str, *inputs: str) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{hat}.b{len(nodes)}"]))
        return str(nodes[-1].output[0])

    def mean(x: str) -> str:
        nodes.append(_mean(model, x, norm.axes, f"{hat}.b{len(nodes)}"))
        return str(nodes[-1].output[0])

    mu = mean(hat)
    centred = made("Sub", hat, mu)
    variance = made("Add", mean(made("Mul", centred, centred)), _EPSILON)
    mixed = made("Add", made("Mul", variance, SHARE), _REST)
    moved = made("Sub", hat, made("Mul", mu, SHARE))
    renormalized = made("Div", moved, made("Sqrt", mixed))
    place = list(model.graph.node).index(norm.product)
    for index, read in enumerate(norm.product.input):
        if read == hat:
            norm.product.input[index] = renormalized
    for offset, node in enumerate(nodes):
        model.graph.node.insert(place + offset, node)


def _mean(model: ModelProto, x: str, axes: list[int], output: str) -> NodeProto:
    if opset(model) < 18:
        return helper.make_node("ReduceMean", [x], [output], axes=axes, keepdims=1)
    name = f"{output}.axes"
    model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))
    return helper.make_node("ReduceMean", [x, name], [output], keepdims=1)
