"""Run part of a graph alone, to learn what it computes whatever nodes it is written with."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import NodeProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.graph import Array, Graph, open_session

_MOST_NODES = 200  # a larger part is no single function


def run_subgraph(
    graph: Graph, feeds: Mapping[str, Array], outputs: list[str]
) -> list[Array] | None:
    """Values of `outputs` where `feeds` are given; None if they hang on anything else."""
    nodes = _between(graph, feeds, outputs)
    if nodes is None:
        return None
    read = {name for node in nodes for name in node.input}
    stored = [t for t in graph.model.graph.initializer if t.name in read and t.name not in feeds]
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim
        )
        for name, value in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    model = helper.make_model(
        helper.make_graph(nodes, "subgraph", inputs, results, stored),
        ir_version=graph.model.ir_version,
        opset_imports=graph.model.opset_import,
    )
    try:
        values = open_session(model).run(outputs, dict(feeds))
    except (ZottaError, RuntimeError, ValueError):  # e.g. it only takes other shapes
        return None
    return [np.asarray(value) for value in values]


def _between(
    graph: Graph, feeds: Mapping[str, Array], outputs: list[str]
) -> list[NodeProto] | None:
    """The nodes on the way from `feeds` and constants to `outputs`, in order."""
    inputs = {value.name for value in graph.model.graph.input}
    stack, seen = list(outputs), set(feeds)
    chosen: set[int] = set()
    while stack:
        name = stack.pop()
        if name in seen or not name:
            continue
        seen.add(name)
        node = graph.producers.get(name)
        if name in inputs or len(chosen) > _MOST_NODES:
            return None
        if node is not None:
            chosen.add(id(node))
            stack.extend(node.input)
    return [node for node in graph.nodes if id(node) in chosen]
