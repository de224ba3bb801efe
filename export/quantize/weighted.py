"""Nodes that multiply activations with constant weights, which are what is quantized."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from zotta_edge.format import Floats
from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute

_LEAST = 256  # weights; below, scales and nodes would outweigh what 8 bits save


@dataclass(frozen=True, eq=False)
class Weighted:
    """A MatMul, Gemm or Conv and its constant second input."""

    node: NodeProto
    weight: Floats
    axis: int  # of the output channels

    @property
    def name(self) -> str:
        return str(self.node.input[1])

    def largest(self) -> Floats:
        """max |w| of each output channel, broadcastable to the weight; 1 for a row of zeros."""
        others = tuple(axis for axis in range(self.weight.ndim) if axis != self.axis)
        largest = np.abs(self.weight).max(axis=others, keepdims=True)
        return np.where(largest > 0, largest, np.float32(1))


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without debugging notes of exporters, which may be larger than 8-bit weights."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    return copy


def find_weighted(graph: Graph) -> list[Weighted]:
    """Every MatMul, Gemm and Conv with enough constant weights."""
    inputs = graph.inputs  # affines may change: no weights
    weighted = []
    for node in graph.nodes:
        if node.op_type not in ("MatMul", "Gemm", "Conv") or node.input[1] in inputs:
            continue
        weight = graph.constant(node.input[1])
        if weight is not None and weight.dtype == np.float32 and weight.size >= _LEAST:
            weighted.append(Weighted(node, weight, _channel_axis(node) % weight.ndim))
    return weighted


def reads_image(graph: Graph, item: Weighted) -> bool:
    """Whether it is the first product or convolution on its path."""
    before = graph.reaching([item.node.input[0]])
    return not any(
        node.op_type in ("MatMul", "Gemm", "Conv") and node.output[0] in before
        for node in graph.nodes
    )


def _channel_axis(node: NodeProto) -> int:
    transposed = node.op_type == "Gemm" and attribute(node, "transB", 0)
    return 0 if node.op_type == "Conv" or transposed else -1


def store_folded(graph: Graph, item: Weighted, codes: Array, scale: Floats) -> None:
    """Keep the weight as 8-bit codes; Cast and Mul turn it into fp32 once, when the file is loaded.

    Written as plain arithmetic because ONNX Runtime folds that at load; a DequantizeLinear it
    would keep, and run again with every batch.
    """
    name = item.name
    stored = graph.add_constant(f"{name}.q", codes)
    factor = graph.add_constant(f"{name}.s", scale)
    if f"{name}.w" not in graph.producers:
        nodes = [
            helper.make_node("Cast", [stored], [f"{name}.f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}.f", factor], [f"{name}.w"]),
        ]
        graph.insert_before(item.node, nodes)
    graph.set_input(item.node, 1, f"{name}.w")
