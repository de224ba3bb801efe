"""The description of a norm that every matcher returns, and what matchers share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto

from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute
from zotta_edge.graph.shapes import Shape, Shapes


@dataclass(frozen=True)
class Form:
    """A norm in the source graph, and the new nodes that compute `hat`, if any are needed."""

    kind: str
    input: str
    output: str
    hat: str
    axis: int  # of the channels in `input`
    scale: Array  # [channels]
    shift: Array  # [channels]
    parameter: str  # the source's name for the scale
    core: list[NodeProto] = field(default_factory=list)


# Returns the norm that a node is the centre of, or None.
Matcher = Callable[[Graph, Shapes, NodeProto], Form | None]


def make_form(
    kind: str,
    x: str,
    output: str,
    axis: int,
    scale: Array,
    shift: Array,
    parameter: str,
    core: list[NodeProto],
) -> Form:
    channels = max(scale.size, shift.size)
    scale, shift = spread(scale, channels), spread(shift, channels)
    return Form(kind, x, output, hat_of(output), axis, scale, shift, parameter, core)


def behind(shapes: Shapes, node: NodeProto, axis: int, kind: str) -> Form:
    """An affine of scale 1 and shift 0 behind a node that keeps what it has of its own."""
    core = NodeProto()
    core.CopyFrom(node)
    output, channels = node.output[0], shapes[node.output[0]][axis]
    core.output[0] = hat_of(output)
    scale, shift = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    return make_form(kind, node.input[0], output, axis, scale, shift, "", [core])


def hat_of(output: str) -> str:
    return f"{output}.hat"


def ones(graph: Graph, size: int) -> str:
    return graph.add_constant(f"zotta.ones.{size}", np.ones(size, np.float32))


def zeros(graph: Graph, size: int) -> str:
    return graph.add_constant(f"zotta.zeros.{size}", np.zeros(size, np.float32))


def spread(values: Array, channels: int) -> Array:
    return np.broadcast_to(np.ravel(values), (channels,)).astype(np.float32)


@dataclass(frozen=True)
class Affine:
    axis: int
    scale: Array
    shift: Array
    output: str
    parameter: str


def find_affine(graph: Graph, shapes: Shapes, hat: str, hint: int) -> Affine | None:
    """The constant per-channel Mul and Add that read `hat`; one of them may be missing."""
    values: dict[str, Array] = {}
    axis, output, parameter = hint, hat, ""
    for op in ("Mul", "Add"):
        node = reader(graph, output, op)
        name = other_input(graph, node, output) if node is not None else ""
        value = graph.constant(name) if name else None
        place = channel_axis(value, shapes[hat], hint) if value is not None else None
        if node is None or value is None or place is None or (values and place != axis):
            continue
        values[op], axis, output = np.ravel(value), place, node.output[0]
        parameter = parameter or name
    if not values:
        return None
    scale, shift = values.get("Mul", np.ones(1)), values.get("Add", np.zeros(1))
    channels = shapes[hat][axis]
    return Affine(axis, spread(scale, channels), spread(shift, channels), output, parameter)


def channel_axis(value: Array, shape: Shape, hint: int) -> int | None:
    """The only axis along which a constant varies, if its length is the tensor's."""
    padded = (1,) * (len(shape) - value.ndim) + value.shape
    wide = [axis for axis, size in enumerate(padded) if size != 1]
    if not wide and shape[hint] == 1:
        return hint
    if len(padded) != len(shape) or len(wide) != 1 or padded[wide[0]] != shape[wide[0]]:
        return None
    return wide[0]


def origin(graph: Graph, name: str) -> str:
    """The tensor behind casts to float32 and copies, which change nothing in an fp32 model."""
    while (node := graph.producer(name, "Identity", "Cast")) is not None:
        if node.op_type == "Cast" and attribute(node, "to") != TensorProto.FLOAT:
            break
        name = node.input[0]
    return name


def reader(graph: Graph, name: str, *ops: str) -> NodeProto | None:
    """The only reader of `name`, looking through such casts and copies."""
    while (node := graph.single_consumer(name, "Identity", "Cast")) is not None:
        name = node.output[0]
    return graph.single_consumer(name, *ops)


def other_input(graph: Graph, node: NodeProto, name: str) -> str:
    """The input of a node with two inputs that does not come from `name`."""
    first, second = map(str, node.input)
    return second if origin(graph, first) == origin(graph, name) else first


def scalar(graph: Graph, name: str) -> float | None:
    value = graph.constant(name)
    return float(value.ravel()[0]) if value is not None and value.size == 1 else None


def optional_constant(graph: Graph, node: NodeProto, place: int) -> Array | None:
    """The constant input at `place`, zero where the node has none, None if it is not constant."""
    if len(node.input) <= place or not node.input[place]:
        return np.zeros(1, np.float32)
    return graph.constant(node.input[place])
