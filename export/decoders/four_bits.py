"""Products with matrices that come in 4 bits: their integers stay as they are.

ONNX Runtime multiplies quickly with weights step * (code - 8). GGUF's step * code + least differs
from that by a constant a block, which meets only the sum of the block's inputs:

    x w = sum_b step_b (code - 8) x_b + sum_b (least_b + 8 step_b) sum(x_b)

The second term is a small matrix in fp32: one number for 32 weights. (The operator's own zero
points may be fractions, too, but then it unpacks the whole matrix at every token.)
"""

import numpy as np
from onnx import NodeProto, helper

from zotta_edge.format import Floats
from zotta_edge.graph.index import Graph
from zotta_edge.models.four_bits import BLOCK, MIDDLE, FourBits

SCHEME = f"4-bit weights as they came, others in 8 bits, activations in 8, blocks of {BLOCK}"
_LAST = "zotta.last_axis"


def multiply_four_bits(
    graph: Graph, x: str, y: str, name: str, weights: FourBits, accuracy_level: int
) -> list[NodeProto]:
    """Nodes for y = x W^T, with what they need stored under `name`."""
    out, blocks, _ = weights.codes.shape
    packed = weights.codes[..., 0::2] | weights.codes[..., 1::2] << 4
    stored = [
        graph.add_constant(f"{name}.q4", packed),
        graph.add_constant(f"{name}.s", weights.steps),
    ]
    sizes = {"K": blocks * BLOCK, "N": out, "bits": 4, "block_size": BLOCK}
    sizes["accuracy_level"] = accuracy_level
    offsets = weights.least + MIDDLE * weights.steps
    product = y if not offsets.any() else f"{y}.centred"
    node = helper.make_node(
        "MatMulNBits", [x, *stored], [product], name=product, domain="com.microsoft", **sizes
    )
    return [node] if product == y else [node, *_offset(graph, x, product, y, name, offsets)]


def _offset(
    graph: Graph,
    x: str,
    product: str,
    y: str,
    name: str,
    offsets: Floats,
) -> list[NodeProto]:
    """Add each block's offset times the sum of its inputs."""
    blocks = offsets.shape[1]
    shape = graph.add_constant(f"zotta.blocks.{blocks}", np.array([0, 0, blocks, BLOCK], np.int64))
    last = graph.add_constant(_LAST, np.array([-1], np.int64))
    table = graph.add_constant(f"{name}.o", np.ascontiguousarray(offsets.T))
    return [
        helper.make_node("Reshape", [x, shape], [f"{y}.blocks"]),
        helper.make_node("ReduceSum", [f"{y}.blocks", last], [f"{y}.sums"], keepdims=0),
        helper.make_node("MatMul", [f"{y}.sums", table], [f"{y}.offset"]),
        helper.make_node("Add", [product, f"{y}.offset"], [y]),
    ]
