"""INT8: integer products that neither saturate on the target nor clip when affines move."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from zotta_edge.export.graph import Graph, attribute
from zotta_edge.export.target import Target
from zotta_edge.export.weighted import Weighted, copy_of, find_weighted, store_folded
from zotta_edge.format import Floats

# VPMADDUBSW adds two u8 x s8 products in 16 bits: 2 * 255 * 64 < 2^15 holds, 2 * 255 * 127 does not.
_LARGEST_CODE: dict[Target, int] = {"avx2": 63, "vnni": 127, "arm64": 127}


def quantize_int8(
    model: onnx.ModelProto, target: Target, images: Floats | None = None
) -> tuple[onnx.ModelProto, str]:
    """The adaptable fp32 model with 8-bit weights, and a line that says how.

    Matrix products become integer products whose activation range is taken from the batch at
    hand, so that no range goes stale. Convolutions keep 8-bit weights and compute in fp32.
    """
    quantized = copy_of(model)
    graph = Graph(quantized)
    largest = _LARGEST_CODE[target]
    for item in find_weighted(graph):
        if _is_plain_product(item):
            _multiply_integers(graph, item, largest)
        else:
            codes, scale = encode(item, 127)
            store_folded(graph, item, codes, scale)
    graph.finish()
    bits = "7-bit" if largest < 127 else "8-bit"
    return quantized, f"MatMul dynamic per-channel S8, {bits} weights; Conv 8-bit weights, fp32"


def encode(item: Weighted, largest: int) -> tuple[NDArray[np.int8], Floats]:
    """Symmetric codes in [-largest, largest] and their scale for each output channel."""
    scale = item.largest() / np.float32(largest)
    return np.rint(item.weight / scale).astype(np.int8), scale


def _is_plain_product(item: Weighted) -> bool:
    """y = x W + b with a matrix W."""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return (
        item.node.op_type == "MatMul"
        and item.weight.ndim == 2
        or (
            item.node.op_type == "Gemm"
            and all(attribute(item.node, key, value) == value for key, value in plain.items())
        )
    )


def _multiply_integers(graph: Graph, item: Weighted, largest: int) -> None:
    """y = (x_q - z) W_q * (s_x s_W) + b; ONNX Runtime runs these nodes as one."""
    node, name, x = item.node, item.name, item.node.input[0]
    codes, scale = encode(item, largest)
    if item.axis == 0:
        codes = codes.T
    graph.add_constant(f"{name}.q", codes)
    graph.add_constant(f"{name}.s", scale.reshape(-1))
    y = node.output[0]
    nodes = [] if f"{x}.q" in graph.producers else [_quantize_input(x)]
    nodes += [
        helper.make_node("MatMulInteger", [f"{x}.q", f"{name}.q", f"{x}.z"], [f"{y}.i"]),
        helper.make_node("Cast", [f"{y}.i"], [f"{y}.f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{x}.s", f"{name}.s"], [f"{y}.s"]),
        helper.make_node("Mul", [f"{y}.f", f"{y}.s"], [y]),
    ]
    if len(node.input) > 2:
        nodes[-1].output[0] = f"{y}.m"
        nodes.append(helper.make_node("Add", [f"{y}.m", node.input[2]], [y]))
    graph.replace(node, nodes)


def _quantize_input(x: str) -> NodeProto:
    return helper.make_node("DynamicQuantizeLinear", [x], [f"{x}.q", f"{x}.s", f"{x}.z"])
