"""A convolution at some of its positions: what tells a channel's moments at a tenth of the work.

The copy reads what the convolution reads, so that the convolution itself keeps the activation, the
pads and the memory layout that ONNX Runtime gives it when nobody else reads its output.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

from onnx import NodeProto, helper

from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute
from zotta_edge.graph.subgraph import Part, run_parts

_LEAST, _MOST = 7, 9  # rows of a map that is worth it; rows that are looked at


def sparse_copy(graph: Graph, tensor: str, positions: int) -> NodeProto | None:
    """The convolution that makes `tensor`, at every third row and column or fewer; None: there is
    none, or too little to leave out.

    Parameters
    ----------
    positions
        Pixels of the map.
    """
    node, rows = graph.producer(tensor, "Conv"), round(positions**0.5)
    if node is None or rows < _LEAST:
        return None
    strides = attribute(node, "strides", [1, 1])
    if attribute(node, "auto_pad", b"NOTSET") != b"NOTSET" or len(strides) != 2:
        return None
    source, pads = _unpadded(graph, node.input[0], attribute(node, "pads", [0, 0, 0, 0]))
    kept = {name: attribute(node, name) for name in ("kernel_shape", "dilations", "group")}
    steps = [step_of(rows) * stride for stride in strides]
    inputs = [source, *node.input[1:]]
    output = f"{tensor}.some"
    return helper.make_node("Conv", inputs, [output], pads=pads, strides=steps, **kept)


def step_of(rows: int) -> int:
    """Odd: in step with no pattern of two or eight."""
    return next(step for step in range(3, rows + 3, 2) if -(-rows // step) <= _MOST)


def _unpadded(graph: Graph, tensor: str, pads: list[int]) -> tuple[str, list[int]]:
    """The convolution's input without a Pad of zeros before it, whose part the pads then do."""
    pad = graph.producer(tensor, "Pad")
    if pad is None or not _is_of_zeros(graph, pad):
        return tensor, list(pads)
    found = graph.constant(pad.input[1])
    if found is None:  # torch writes a dozen nodes to say how wide
        (found,) = run_parts(graph, [Part({}, pad.input[1])])
    if found is None or len(found) != 8 or found[[0, 1, 4, 5]].any() or found.min() < 0:
        return tensor, list(pads)
    more = found[[2, 3, 6, 7]]
    return pad.input[0], [int(own + added) for own, added in zip(pads, more, strict=True)]


def _is_of_zeros(graph: Graph, pad: NodeProto) -> bool:
    if len(pad.input) < 2 or attribute(pad, "mode", b"constant") != b"constant":
        return False  # before opset 11 the numbers are attributes: left alone
    given = pad.input[2] if len(pad.input) > 2 else ""
    value = graph.constant(given) if given else None
    return not given or (value is not None and not value.any())
