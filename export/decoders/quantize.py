"""8-bit decoders: weights and activations in blocks of 32, each block with a scale of its own.

Classifiers have one scale for a whole activation tensor. A decoder's first token carries values
hundreds of times as large as the others', which would leave those with a bit or two; a block's
scale keeps the damage inside the block. ONNX Runtime's MatMulNBits multiplies integers that way.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from zotta_edge.export.decoders.four_bits import multiply_four_bits
from zotta_edge.export.quantize.weighted import copy_of
from zotta_edge.format import Floats
from zotta_edge.graph.index import Graph
from zotta_edge.models.four_bits import FourBits
from zotta_edge.progress import tracked

BLOCK = 32
SCHEME = f"8-bit weights and activations in blocks of {BLOCK}"
_CONTRIB = "com.microsoft"
_LEAST = 256  # weights; below, scales would outweigh what 8 bits save
_INTEGERS = 4  # accuracy_level: activations are quantized, block by block
_ZERO, _LARGEST = 128, 127


def quantize_blocks(
    model: onnx.ModelProto, kept: Mapping[str, FourBits] | None = None
) -> onnx.ModelProto:
    """The same graph with 8-bit weights in every product with a matrix, and in the embedding.

    Matrices whose 4 bits are given in `kept`, by name, keep those.
    """
    quantized = copy_of(model)
    graph = Graph(quantized)
    products = [node for node in graph.nodes if _matrix(graph, node) is not None]
    for node in tracked(products, "quantizing"):
        _multiply_blocks(graph, node, kept or {})
    for node in [node for node in graph.nodes if node.op_type == "Gather"]:
        _gather_blocks(graph, node)
    graph.finish()
    if _CONTRIB not in {each.domain for each in quantized.opset_import}:
        quantized.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
    return quantized


def encode(rows: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Codes [out, blocks, BLOCK] and scales [out, blocks] of a matrix [out, in].

    >>> codes, scales = encode(np.array([[-1.0] + 31 * [0.5]], np.float32))
    >>> codes[0, 0, :2], scales.shape
    (array([  1, 192], dtype=uint8), (1, 1))
    """
    out, width = rows.shape
    padded = np.pad(rows, ((0, 0), (0, -width % BLOCK))).reshape(out, -1, BLOCK)
    largest = np.abs(padded).max(axis=2)
    scales = np.where(largest > 0, largest / _LARGEST, 1).astype(np.float32)
    codes = np.rint(padded / scales[..., None]) + _ZERO
    return codes.astype(np.uint8), scales


def _matrix(graph: Graph, node: NodeProto) -> tuple[str, Floats] | None:
    """Name and rows [out, in] of the constant matrix that a node multiplies with."""
    if node.op_type != "MatMul" or node.input[1] in graph.inputs:
        return None
    name = str(node.input[1])
    turned = graph.producer(name, "Transpose")  # a head that is the embedding
    value = graph.constant(turned.input[0] if turned is not None else name)
    if value is None or value.ndim != 2 or value.dtype != np.float32 or value.size < _LEAST:
        return None
    return (str(turned.input[0]), value) if turned is not None else (name, value.T)


def _store(graph: Graph, name: str, rows: Floats) -> tuple[str, str]:
    codes, scales = f"{name}.q", f"{name}.s"
    if codes not in graph.names():
        values, factors = encode(rows)
        graph.add_constant(codes, values)
        graph.add_constant(scales, factors)
    return codes, scales


def _multiply_blocks(graph: Graph, node: NodeProto, kept: Mapping[str, FourBits]) -> None:
    found = _matrix(graph, node)
    assert found is not None
    name, rows = found
    if name in kept:
        ends = (str(node.input[0]), str(node.output[0]))
        graph.replace(node, multiply_four_bits(graph, *ends, name, kept[name], _INTEGERS))
        return
    out, width = rows.shape
    product = helper.make_node(
        "MatMulNBits",
        [node.input[0], *_store(graph, name, rows)],
        list(node.output),
        name=node.name,
        domain=_CONTRIB,
        **{"K": width, "N": out, "bits": 8, "block_size": BLOCK, "accuracy_level": _INTEGERS},
    )
    graph.replace(node, [product])


def _gather_blocks(graph: Graph, node: NodeProto) -> None:
    """Rows of an embedding, decoded as they are read; a tied head shares the same codes."""
    table = graph.constant(node.input[0])
    if table is None or table.ndim != 2 or table.dtype != np.float32 or table.size < _LEAST:
        return
    if table.shape[1] % BLOCK or node.input[0] in graph.inputs:
        return
    codes, scales = _store(graph, str(node.input[0]), table)
    ids, y = node.input[1], node.output[0]
    zero = graph.add_constant("zotta.code", np.array(_ZERO, np.float32))
    last = graph.add_constant("zotta.last", np.array([-1], np.int64))
    shape = graph.add_constant("zotta.row", np.array([0, 0, table.shape[1]], np.int64))
    nodes = [
        helper.make_node("Gather", [codes, ids], [f"{y}.q"]),
        helper.make_node("Cast", [f"{y}.q"], [f"{y}.f"], to=TensorProto.FLOAT),
        helper.make_node("Sub", [f"{y}.f", zero], [f"{y}.c"]),
        helper.make_node("Gather", [scales, ids], [f"{y}.g"]),
        helper.make_node("Unsqueeze", [f"{y}.g", last], [f"{y}.s"]),
        helper.make_node("Mul", [f"{y}.c", f"{y}.s"], [f"{y}.b"]),
        helper.make_node("Reshape", [f"{y}.b", shape], [y]),
    ]
    graph.replace(node, nodes)
