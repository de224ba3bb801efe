"""QOperator files in QDQ form: the same integers, with float tensors between them.

ONNX Runtime joins DequantizeLinear, Conv and QuantizeLinear into QLinearConv again when it loads
the file, wherever nothing else reads the float tensors.
"""

import numpy as np
from onnx import NodeProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import free_name

# op -> its float form, and the places of what it reads: (codes, scale, zero point) of each input.
_PRODUCTS = {
    "QLinearConv": ("Conv", ((0, 1, 2), (3, 4, 5)), (6, 7), 8),
    "QLinearMatMul": ("MatMul", ((0, 1, 2), (3, 4, 5)), (6, 7), None),
    "QGemm": ("Gemm", ((0, 1, 2), (3, 4, 5)), (7, 8), 6),
}
_PAIRS = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_SINGLE = {
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearAveragePool": "AveragePool",
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSoftmax": "Softmax",
}
_OWN = ("channels_last", "opset")  # attributes that the float operators do not have


def refuse_unknown(graph: Graph) -> None:
    """Name a QLinear operator that `to_qdq` cannot rewrite."""
    known = {*_PRODUCTS, *_PAIRS, *_SINGLE, "QLinearConcat"}
    for node in graph.nodes:
        if node.op_type.startswith("QLinear") and node.op_type not in known:
            raise ZottaError(
                f"{node.name or node.op_type} is a {node.op_type}, which zotta-edge does not know: "
                "quantize the model in QDQ form, or export the fp32 model"
            )


def to_qdq(graph: Graph) -> None:
    """Rewrite every QLinear operator as DequantizeLinear, the float operator, QuantizeLinear."""
    for node in list(graph.nodes):
        if node.op_type in _PRODUCTS:
            graph.replace(node, _product(graph, node))
        elif node.op_type in _PAIRS:
            graph.replace(node, _plain(node, _PAIRS[node.op_type], ((0, 1, 2), (3, 4, 5)), (6, 7)))
        elif node.op_type in _SINGLE:
            graph.replace(node, _plain(node, _SINGLE[node.op_type], ((0, 1, 2),), (3, 4)))
        elif node.op_type == "QLinearConcat":  # the output's scale and zero point come first
            places = tuple((at, at + 1, at + 2) for at in range(2, len(node.input), 3))
            graph.replace(node, _plain(node, "Concat", places, (0, 1)))


_Places = tuple[tuple[int, int, int], ...]


def _plain(
    node: NodeProto, op: str, inputs: _Places, output: tuple[int, int], bias: str = ""
) -> list[NodeProto]:
    y = node.output[0]
    names = [f"{y}.input{index}" for index in range(len(inputs))]
    read = [
        _dequantize([node.input[place] for place in places], name)
        for places, name in zip(inputs, names, strict=True)
    ]
    coding = [node.input[place] for place in output if place < len(node.input)]
    result = f"{y}.result" if coding else y
    compute = helper.make_node(op, [*names, *([bias] if bias else [])], [result], name=node.name)
    compute.attribute.extend(item for item in node.attribute if item.name not in _OWN)
    write = [helper.make_node("QuantizeLinear", [result, *coding], [y])] if coding else []
    return [*read, compute, *write]


def _product(graph: Graph, node: NodeProto) -> list[NodeProto]:
    op, inputs, output, place = _PRODUCTS[node.op_type]
    bias, nodes = "", []
    if place is not None and place < len(node.input) and node.input[place]:
        bias = f"{node.output[0]}.bias"
        nodes = [_dequantize_bias(graph, node, place, bias)]
    nodes += _plain(node, op, inputs, output, bias)
    for dequantize in nodes:
        weights = dequantize.op_type == "DequantizeLinear" and dequantize.input[0] == node.input[3]
        if weights and _per_channel(graph, node.input[4]):
            axis = 0 if op == "Conv" or _transposed(node) else 1
            _set_axis(graph, dequantize, axis)
    return nodes


def _dequantize(inputs: list[str], output: str) -> NodeProto:
    return helper.make_node("DequantizeLinear", [name for name in inputs if name], [output])


def _dequantize_bias(graph: Graph, node: NodeProto, place: int, output: str) -> NodeProto:
    """int32 at the scale of the sum of products: that of x times that of the weights."""
    x, weights = graph.constant(node.input[1]), graph.constant(node.input[4])
    if x is None or weights is None:
        raise ZottaError(f"{node.name or node.op_type}: the scales are not constant")
    name = free_name(f"{output}.scale", graph.names())
    scale = graph.add_constant(name, np.asarray(x.ravel()[0] * weights, np.float32))
    dequantize = helper.make_node("DequantizeLinear", [node.input[place], scale], [output])
    if weights.size > 1:
        _set_axis(graph, dequantize, 0)
    return dequantize


def _per_channel(graph: Graph, scale: str) -> bool:
    value = graph.constant(scale)
    return value is not None and value.size > 1


def _transposed(node: NodeProto) -> bool:
    return any(item.name == "transB" and item.i for item in node.attribute)


def _set_axis(graph: Graph, dequantize: NodeProto, axis: int) -> None:
    if graph.opset < 13:
        raise ZottaError(
            f"the model has opset {graph.opset} and weights with a scale for each channel: 13 or "
            "later is needed; convert it with onnx.version_converter"
        )
    dequantize.attribute.append(helper.make_attribute("axis", axis))
