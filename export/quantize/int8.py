"""INT8: integer products that neither saturate on the target nor clip when affines move.

Every activation range is taken from the batch at hand, so no range goes stale and no calibration
images are needed.
"""

from typing import cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from zotta_edge.export.quantize.attention import Attention, find_attentions
from zotta_edge.export.quantize.gelu import find_gelus
from zotta_edge.export.quantize.target import Target
from zotta_edge.export.quantize.weighted import (
    Weighted,
    copy_of,
    find_weighted,
    reads_image,
    store_folded,
)
from zotta_edge.export.sources.opset import with_opset
from zotta_edge.format import Floats
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute
from zotta_edge.graph.shapes import Shapes
from zotta_edge.progress import tracked

Codes = NDArray[np.int8]

# VPMADDUBSW adds two u8 x s8 products in 16 bits: 2 * 255 * 63 fits, 2 * 255 * 127 does not.
_LARGEST_CODE: dict[Target, int] = {"avx2": 63, "vnni": 127, "arm64": 127}

# A convolution's output may reach this many times |w| * (range of its input), |w| the length of
# the channel's weights. Measured on ResNet26-GN and EfficientNet-Lite0, at source affines and
# perturbed ones: 0.6 to 1.5 in all but a few layers. Twice as much would cost a bit.
_REACH = 1.5
# Fewer products a pixel than this do not pay for quantizing the input and widening the output:
# ResNet26-GN at batch 64 takes 1.25x the time of fp32 without this limit, 1.04x with it.
_FEWEST_PRODUCTS = 576
_MIDDLE = 128  # the code of zero in a convolution's output
_OPSET = 13  # DequantizeLinear with one scale a channel
_CONTRIB = "com.microsoft"


def quantize_int8(
    model: onnx.ModelProto, target: Target, shapes: Shapes
) -> tuple[onnx.ModelProto, str]:
    """The adaptable fp32 model with 8-bit weights and integer products, and a description.

    `shapes` are those of its tensors, which attention is recognized by.

    Depthwise, pointwise, narrow and image-reading convolutions keep 8-bit weights and compute in
    fp32: integers gained no time there, and on EfficientNet-Lite0 lost accuracy.
    """
    quantized = with_opset(copy_of(model), _OPSET)
    graph = Graph(quantized)
    largest = _LARGEST_CODE[target]
    _fuse(graph, largest, shapes)
    weighted = find_weighted(graph)
    first = [item for item in weighted if reads_image(graph, item)]
    for item in tracked(weighted, "quantizing"):
        if _is_plain_product(item):
            _multiply_integers(graph, item, largest)
        elif _is_dense(graph, item) and item not in first:
            _convolve_integers(graph, item, largest)
        else:
            store_folded(graph, item, *encode(item, 127))
    graph.finish()
    bits = 7 if largest < 127 else 8
    return quantized, f"dynamic U8 activations, per-channel S8 weights of {bits} bits"


def encode(item: Weighted, largest: int) -> tuple[Codes, Floats]:
    """Symmetric codes in [-largest, largest] and their scale for each output channel."""
    scale = item.largest() / np.float32(largest)
    return np.rint(item.weight / scale).astype(np.int8), scale


def _fuse(graph: Graph, largest: int, shapes: Shapes) -> None:
    """Attention and GELU as the single nodes that ONNX Runtime has for them."""
    attentions, gelus = find_attentions(graph, shapes), find_gelus(graph)
    for attention in attentions:
        graph.replace(graph.producers[attention.output], _attend(graph, attention, largest))
    for x, y in gelus:
        # The tanh form, whose error of 5e-4 is far below a step of the 8 bits that follow.
        node = helper.make_node("FastGelu", [x], [y], domain=_CONTRIB)
        graph.replace(graph.producers[y], [node])
    if attentions or gelus:
        graph.model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
    graph.finish()


def _attend(graph: Graph, attention: Attention, largest: int) -> list[NodeProto]:
    x, name = attention.x, attention.name
    scale = np.maximum(np.abs(attention.weight).max(axis=0), np.float32(1e-30)) / largest
    codes = graph.add_constant(f"{name}.q", np.rint(attention.weight / scale).astype(np.int8))
    scales = graph.add_constant(f"{name}.s", scale.astype(np.float32))
    bias = graph.add_constant(f"{name}.b", attention.bias)
    node = helper.make_node(
        "QAttention",
        [f"{x}.q", codes, bias, f"{x}.s", scales, "", f"{x}.z"],
        [attention.output],
        num_heads=attention.heads,
        domain=_CONTRIB,
    )
    return [*_quantize_input(graph, x), node]


def _quantize_input(graph: Graph, x: str) -> list[NodeProto]:
    """x_q, its scale and zero point, from the smallest and largest value of the batch."""
    if f"{x}.q" in graph.producers:
        return []
    return [helper.make_node("DynamicQuantizeLinear", [x], [f"{x}.q", f"{x}.s", f"{x}.z"])]


def _is_plain_product(item: Weighted) -> bool:
    """y = x W + b with a matrix W."""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return item.weight.ndim == 2 and all(
        attribute(item.node, key, value) == value for key, value in plain.items()
    )


def _multiply_integers(graph: Graph, item: Weighted, largest: int) -> None:
    """y = (x_q - z) W_q * (s_x s_W) + b; ONNX Runtime runs these nodes as one."""
    node, name, x = item.node, item.name, item.node.input[0]
    codes, scale = encode(item, largest)
    graph.add_constant(f"{name}.q", codes.T if item.axis == 0 else codes)
    graph.add_constant(f"{name}.s", scale.reshape(-1))
    y = node.output[0]
    nodes = [
        *_quantize_input(graph, x),
        helper.make_node("MatMulInteger", [f"{x}.q", f"{name}.q", f"{x}.z"], [f"{y}.i"]),
        helper.make_node("Cast", [f"{y}.i"], [f"{y}.f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{x}.s", f"{name}.s"], [f"{y}.s"]),
        helper.make_node("Mul", [f"{y}.f", f"{y}.s"], [y]),
    ]
    graph.replace(node, [*nodes, *_add_bias(node, nodes[-1])])


def _add_bias(node: NodeProto, last: NodeProto) -> list[NodeProto]:
    """The node that adds the bias of `node`, if it has one, to what `last` computes."""
    if len(node.input) < 3 or not node.input[2]:
        return []
    y = last.output[0]
    last.output[0] = f"{y}.d"
    return [helper.make_node("Add", [f"{y}.d", node.input[2]], [y])]


def _is_dense(graph: Graph, item: Weighted) -> bool:
    """A convolution over space and all channels: the kind that integers make faster."""
    bias = item.node.input[2:]
    return (
        item.node.op_type == "Conv"
        and all(graph.constant(name) is not None for name in bias)
        and attribute(item.node, "group", 1) == 1
        and item.weight.ndim == 4
        and max(item.weight.shape[2:]) > 1
        and item.weight[0].size >= _FEWEST_PRODUCTS
    )


def _convolve_integers(graph: Graph, item: Weighted, largest: int) -> None:
    """y / (|w| r) in 8 bits, at the scale of x; then times s_x |w| r, channel by channel.

    QLinearConv wants its output's scale before it runs. A channel divided by the length |w| of its
    weights stays within `_REACH` times the range of x, whatever the affines do to x.
    """
    node, name, x, y = item.node, item.name, item.node.input[0], item.node.output[0]
    codes, scale = encode(item, largest)
    channels = len(codes)
    length = np.linalg.norm(item.weight.reshape(channels, -1), axis=1)
    reach = (np.where(length > 0, length, 1) * _REACH * 255 / 127).astype(np.float32)
    graph.add_constant(f"{name}.q", codes)
    graph.add_constant(f"{name}.s", scale.reshape(-1) / reach)
    graph.add_constant(f"{name}.r", reach)
    middle = graph.add_constant("zotta.middle", np.array(_MIDDLE, np.uint8))
    middles = graph.add_constant(f"zotta.middle.{channels}", np.full(channels, _MIDDLE, np.uint8))
    zero = graph.add_constant("zotta.zero", np.array(0, np.int8))
    convolve = helper.make_node(
        "QLinearConv",
        [f"{x}.q", f"{x}.s", f"{x}.z", f"{name}.q", f"{name}.s", zero, f"{x}.s", middle],
        [f"{y}.q"],
    )
    convolve.attribute.extend(node.attribute)
    nodes = [
        *_quantize_input(graph, x),
        convolve,
        helper.make_node("Mul", [f"{x}.s", f"{name}.r"], [f"{y}.s"]),
        helper.make_node("DequantizeLinear", [f"{y}.q", f"{y}.s", middles], [y], axis=1),
    ]
    bias = _add_bias(node, nodes[-1])
    for add in bias:  # from [channel] to what broadcasts over height and width
        values = cast(Floats, graph.constant(add.input[1]))
        add.input[1] = graph.add_constant(f"{y}.b", values.reshape(-1, 1, 1))
    graph.replace(node, [*nodes, *bias])
