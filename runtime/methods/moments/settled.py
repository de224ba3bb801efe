"""The alignment of a settled stream, written into the graph: convolutions take it up for nothing.

While M comes from a batch, scale and shift are known only within the pass, and every site costs a
product and a sum over its map. Once M hardly changes they are constants, which ONNX Runtime folds
into the weights, and the moments are measured by sparse copies of the convolutions.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

import numpy as np
from onnx import numpy_helper

from zotta_edge.format import Floats
from zotta_edge.format.moments import Site, SourceMoments
from zotta_edge.graph.index import Graph
from zotta_edge.graph.subgraph import parse
from zotta_edge.runtime.methods.moments.graph import (
    KEEP,
    NOISE,
    RUNNING,
    WEIGHTS,
    WITH_BATCH,
    prefix_of,
)
from zotta_edge.runtime.methods.moments.sparse import sparse_copy


def settled(cone: bytes, path: str, source: SourceMoments, running: Floats, noise: float) -> bytes:
    """The cone of a model that aligns its moments, with M = `running` for good."""
    model = parse(cone, path)
    values = {RUNNING: running, NOISE: np.array([noise], np.float32)}
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
    inputs = [x for x in model.graph.input if x.name not in (RUNNING, KEEP, WEIGHTS, NOISE)]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    graph = Graph(model)
    for node in list(graph.nodes):
        if node.output[0].endswith(WITH_BATCH):
            graph.reroute(node.output[0], node.input[1])
    for site in source.sites:
        _measure_sparsely(graph, site)
    graph.finish()
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _measure_sparsely(graph: Graph, site: Site) -> None:
    """Let a site's moments be those of a copy, so that nobody else reads the convolution."""
    copy = sparse_copy(graph, site.tensor, site.positions)
    if copy is None:
        return
    for node in list(graph.consumers[site.tensor]):
        if not node.output[0].startswith(prefix_of(site)):
            continue
        if node.op_type == "Slice":  # some rows of a large map
            graph.reroute(node.output[0], copy.output[0])
        else:
            for place, name in enumerate(node.input):
                if name == site.tensor:
                    graph.set_input(node, place, copy.output[0])
    graph.insert_after(site.tensor, [copy])
