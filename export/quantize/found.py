"""Quantization that a source file brings with it: recognised, described, and kept as it is."""

from collections.abc import Sequence

from onnx import NodeProto

from zotta_edge.format import Precision
from zotta_edge.graph.nodes import attribute

# One line for a person, and the operators that tell; the first scheme that is found counts.
_SCHEMES: dict[str, tuple[str, ...]] = {
    "dynamic": ("DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul"),
    "QOperator": ("QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "QAttention"),
    "QDQ": ("QuantizeLinear", "DequantizeLinear"),
    "weight-only": ("MatMulNBits", "QMoE"),
}


def found_scheme(nodes: Sequence[NodeProto]) -> str:
    """How a file is quantized already; empty if it is not.

    >>> from onnx import helper
    >>> found_scheme([helper.make_node("ConvInteger", ["x", "w"], ["y"])])
    'as found: dynamic'
    """
    operators = {node.op_type for node in nodes}
    for scheme, telling in _SCHEMES.items():
        if not operators.isdisjoint(telling):
            return f"as found: {scheme}"
    return ""


def found_precision(nodes: Sequence[NodeProto]) -> Precision:
    """What its weights are stored in."""
    if not found_scheme(nodes):
        return "fp32"
    bits = [attribute(node, "bits", 4) for node in nodes if node.op_type == "MatMulNBits"]
    return "int4" if bits and min(bits) <= 4 else "int8"
