"""GELU, as a single node or spelled out with Erf."""

import math

import numpy as np
from onnx import NodeProto

from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute
from zotta_edge.graph.subgraph import Part, run_parts

_GRID = np.linspace(-6, 6, 97, dtype=np.float32)
_GELU = np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in _GRID], np.float32)
_STEPS = 4  # nodes after the Erf: add 1, times x, times a half, in any order


def find_gelus(graph: Graph) -> list[tuple[str, str]]:
    """Pairs of tensors (x, y) with y = gelu(x)."""
    native = [
        (node.input[0], node.output[0])
        for node in graph.nodes
        if node.op_type == "Gelu" and attribute(node, "approximate", b"none") == b"none"
    ]
    paths = [_path(graph, node) for node in graph.nodes if node.op_type == "Erf"]
    parts = [Part({x: _GRID}, y) for x, results in paths for y in results]
    values = zip(parts, run_parts(graph, parts), strict=True)
    right = {part.output for part, value in values if value is not None and _is_gelu(value)}
    spelled = [(x, next((y for y in results if y in right), "")) for x, results in paths]
    return native + [(x, y) for x, y in spelled if y]


def _path(graph: Graph, erf: NodeProto) -> tuple[str, list[str]]:
    """What an Erf is computed from, and the tensors after it that may be the result."""
    scaled = graph.producer(erf.input[0], "Div", "Mul")
    x = next((name for name in scaled.input if graph.constant(name) is None), "") if scaled else ""
    results = [erf.output[0]]
    while (
        x
        and len(results) <= _STEPS
        and (reader := graph.single_consumer(results[-1], "Add", "Mul", "Div")) is not None
    ):
        results.append(reader.output[0])
    return x, results[1:]


def _is_gelu(values: Array) -> bool:
    return values.shape == _GRID.shape and np.allclose(values, _GELU, atol=1e-5)
