"""GELU, found by what it computes: as one node, or spelled out with Erf."""

import math

import numpy as np
from onnx import NodeProto

from zotta_edge.export.graph import Graph, attribute
from zotta_edge.export.subgraph import run_subgraph

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
    spelled = (_match(graph, node) for node in graph.nodes if node.op_type == "Erf")
    return native + [pair for pair in spelled if pair is not None]


def _match(graph: Graph, erf: NodeProto) -> tuple[str, str] | None:
    scaled = graph.producer(erf.input[0], "Div", "Mul")
    x = next((name for name in scaled.input if graph.constant(name) is None), "") if scaled else ""
    y = erf.output[0]
    for _ in range(_STEPS if x else 0):
        reader = graph.single_consumer(y, "Add", "Mul", "Div")
        if reader is None:
            return None
        y = reader.output[0]
        ran = run_subgraph(graph, {x: _GRID}, [y])
        if (
            ran is not None
            and ran[0].shape == _GRID.shape
            and np.allclose(ran[0], _GELU, atol=1e-5)
        ):
            return x, y
    return None
