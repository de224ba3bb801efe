"""The model as it came: affines that nobody moves are constants, and inserted ones are gone.

Convolutions take constants up: EfficientNet-Lite0 with its BatchNorms takes 15 ms an image instead
of 36 (one thread, batch 16). Needs the onnx package, so it is imported only when there is a graph
to rewrite.
"""

from collections.abc import Iterable

from onnx import ModelProto

from zotta_edge.format import IMAGE, Norm, from_metadata
from zotta_edge.graph.index import Graph
from zotta_edge.graph.subgraph import parse
from zotta_edge.runtime.engine.pooling import pool_in_place


def without_affines(content: bytes, path: str) -> bytes:
    """The model file without its optional inputs; it answers as before."""
    model = parse(content, path)
    info = from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    fix_affines(model, info.norms)
    pool_in_place(model, info)
    kept: bytes = model.SerializeToString(deterministic=True)
    return kept


def fix_affines(model: ModelProto, norms: Iterable[Norm]) -> None:
    """Make constants of a model's optional inputs, in place."""
    inputs = [value for value in model.graph.input if value.name == IMAGE]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    graph = Graph(model)
    for norm in norms:
        if norm.inserted:
            _drop(graph, norm)
    graph.finish()


def _drop(graph: Graph, norm: Norm) -> None:
    """Take y * 1 + 0 out, and the codes that are made of it a second time."""
    products, sums = graph.consumers[norm.scale], graph.consumers[norm.shift]
    if [node.op_type for node in (*products, *sums)] != ["Mul", "Add"]:
        return  # the source's affine moved otherwise
    (source,) = (name for name in products[0].input if name != norm.scale)
    if sums[0].output[0] in graph.outputs:
        return
    graph.reroute(sums[0].output[0], source)
    decoded = graph.producer(source, "DequantizeLinear")
    for node in list(graph.consumers[source]):
        if decoded and node.op_type == "QuantizeLinear" and node.input[1:] == decoded.input[1:]:
            graph.reroute(node.output[0], decoded.input[0])
