"""The cost of a node, estimated from shapes: multiplications and memory traffic."""

from collections.abc import Mapping, Sequence
from math import prod

from zotta_edge.graph.shapes import Shape

# In fp32 multiply-adds. Measured on AVX2 cores with DeiT-Ti and ResNet26-GN: 8-bit products run at
# twice the speed of fp32 ones, an element written costs some 15 of them, an erf or exp 40 more.
_EIGHT_BIT = 0.5
_ELEMENT = 15.0
_TRANSCENDENTAL = 40.0

_VIEWS = {"Constant", "Flatten", "Identity", "Reshape", "Shape", "Squeeze", "Unsqueeze"}
_TRANSCENDENTALS = {"Erf", "Exp", "FastGelu", "Gelu", "Log", "Sigmoid", "Softplus", "Swish", "Tanh"}
_PRODUCTS = {  # op -> input that holds the left factor
    "DynamicQuantizeMatMul": 0,
    "FusedMatMul": 0,
    "Gemm": 0,
    "MatMul": 0,
    "MatMulInteger": 0,
    "MatMulIntegerToFloat": 0,
    "MatMulNBits": 0,
    "QGemm": 0,
    "QLinearMatMul": 0,
}
_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3}  # op -> the kernel
_TRANSPOSED = {"ConvTranspose": 1}


def cost(
    op: str, inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, int]
) -> float:
    """The cost of one node on one sample, in fp32 multiply-adds.

    Parameters
    ----------
    op
        Type of the node.
    inputs, outputs
        Shapes of the tensors it reads and makes, in order; () where unknown.
    attributes
        Its whole-number attributes.

    >>> cost("Relu", [(1, 10)], [(1, 10)], {})
    150.0
    >>> cost("MatMul", [(1, 7, 3), (3, 5)], [(1, 7, 5)], {}) - cost("Relu", [], [(1, 7, 5)], {})
    105.0
    """
    if op in _VIEWS or not outputs:
        return 0.0
    elements = sum(prod(shape) for shape in outputs)
    weight = _ELEMENT + (_TRANSCENDENTAL if op in _TRANSCENDENTALS else 0.0)
    return weight * elements + _multiply_adds(op, inputs, outputs[0], attributes)


def _multiply_adds(
    op: str, inputs: Sequence[Shape], output: Shape, attributes: Mapping[str, int]
) -> float:
    if op in _PRODUCTS:
        left = inputs[_PRODUCTS[op]]
        count = prod(output) * left[0 if attributes.get("transA") else -1]
    elif op in _CONVOLUTIONS:
        count = prod(output) * prod(inputs[_CONVOLUTIONS[op]][1:])  # [out, in / groups, h, w]
    elif op in _TRANSPOSED:
        count = prod(inputs[0]) * prod(inputs[1][1:])
    elif op == "QAttention":  # inputs: x [..., token, channel], weights of Q, K and V side by side
        count = prod(output) * 3 * inputs[0][-1]
        return _EIGHT_BIT * count + prod(output) * 2 * output[-2]  # scores and their sum: fp32
    else:
        return 0.0
    return count * (_EIGHT_BIT if "Integer" in op or "Q" in op or "Quantize" in op else 1.0)
