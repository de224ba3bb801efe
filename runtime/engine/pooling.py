"""Pooled features at little cost: each map stays in the layout, and the type, that it is in.

A mean over rows and columns takes a map out of the blocked layout of ONNX Runtime's convolutions,
and codes into floats, as some 5 % of plain inference. A global average stays in the blocked layout,
and codes are added up as integers. Needs the onnx package, so it is imported only when there is a
graph to rewrite.
"""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from zotta_edge.format import EMBEDDING, IMAGE, ModelInfo
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute
from zotta_edge.graph.shapes import Shape, ShapeProbe
from zotta_edge.runtime.engine.model_info import image_axes

_ROWS_AND_COLUMNS = [2, 3]  # of a map, [batch, channel, row, column]


def pool_in_place(model: ModelProto, info: ModelInfo) -> None:
    """Let the means of maps be computed as they cost least; those of other layouts stay."""
    graph = Graph(model)
    outputs = [*(layer.feature for layer in info.layers), EMBEDDING]
    pools = [pool for name in outputs if (pool := _mean_of_map(graph, name))]
    decoders = [_decoder(graph, pool.input[0]) for pool in pools]
    codes = list(dict.fromkeys(decoder.input[0] for decoder in decoders if decoder))
    shapes = _shapes(graph, info, codes) if codes else {}
    for pool, decoder in zip(pools, decoders, strict=True):
        new = _of_codes(graph, pool, decoder, shapes) if decoder else _of_floats(pool)
        graph.replace(pool, new)
    graph.finish()


def _mean_of_map(graph: Graph, name: str) -> NodeProto | None:
    pool = graph.producer(name, "ReduceMean")
    if pool is None or attribute(pool, "keepdims", 1):
        return None
    axes = graph.constant(pool.input[1]) if len(pool.input) > 1 else attribute(pool, "axes")
    return pool if axes is not None and list(axes) == _ROWS_AND_COLUMNS else None


def _decoder(graph: Graph, tensor: str) -> NodeProto | None:
    """The node that makes `tensor` of 8-bit codes with one step for all channels."""
    node = graph.producer(tensor, "DequantizeLinear")
    if node is None or len(node.input) < 3:
        return None
    step, zero = (graph.constant(name) for name in node.input[1:])
    if step is None or step.size != 1 or zero is None or zero.dtype.itemsize != 1:
        return None
    return node


def _shapes(graph: Graph, info: ModelInfo, names: list[str]) -> dict[str, Shape]:
    return ShapeProbe(graph.model, names).run(IMAGE, image_axes(info.preprocessing), 1)


def _of_floats(pool: NodeProto) -> list[NodeProto]:
    output = pool.output[0]
    return [
        helper.make_node("GlobalAveragePool", pool.input[:1], [f"{output}.map"]),
        helper.make_node("Flatten", [f"{output}.map"], [output], axis=1),
    ]


def _of_codes(
    graph: Graph, pool: NodeProto, decoder: NodeProto, shapes: dict[str, Shape]
) -> list[NodeProto]:
    """1 (q - zero) step / n, a product of integers; ONNX Runtime keeps codes channels last."""
    output, (codes, step, zero) = pool.output[0], decoder.input
    _, channels, rows, columns = shapes[codes]
    n = rows * columns
    names = [f"{output}.{part}" for part in ("last", "rows", "sum", "float", "mean")]
    last, listed, total, single, mean = names
    constant = graph.constant(step)
    assert constant is not None  # `_decoder` has looked
    ones = graph.add_constant(f"zotta.ones.{n}", np.ones((1, n), np.uint8))
    shape = graph.add_constant(f"{output}.shape", np.array([-1, n, channels], np.int64))
    flat = graph.add_constant(f"{output}.flat", np.array([-1, channels], np.int64))
    unit = graph.add_constant(f"{output}.unit", np.array(constant.item() / n, np.float32))
    return [
        helper.make_node("Transpose", [codes], [last], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", [last, shape], [listed]),
        helper.make_node("MatMulInteger", [ones, listed, "", zero], [total]),
        helper.make_node("Cast", [total], [single], to=TensorProto.FLOAT),
        helper.make_node("Mul", [single, unit], [mean]),
        helper.make_node("Reshape", [mean, flat], [output]),
    ]
