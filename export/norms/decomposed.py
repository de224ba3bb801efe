"""LayerNorm and RMSNorm that exporters write as arithmetic."""

from onnx import NodeProto, helper

from zotta_edge.export.norms.norm_form import (
    Form,
    channel_axis,
    find_affine,
    hat_of,
    make_form,
    ones,
    origin,
    other_input,
    reader,
    scalar,
)
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute
from zotta_edge.graph.shapes import Shapes


def match_decomposed(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """mean(d^2) + epsilon -> root -> d / root, then Mul and Add; d is x (RMS) or x - mean(x)."""
    deviation = _squared(graph, node.input[0])
    if deviation is None:
        return None
    axes = _reduced_axes(graph, node, len(shapes[deviation]))
    x = _centred(graph, shapes, deviation, axes)
    root, op = _inverse_root(graph, node.output[0]) or ("", "")
    if not root:
        return None
    quotient = _quotient(graph, root, op, {deviation} | _twins(graph, shapes, x, axes))
    if quotient is None:
        return _factored(graph, shapes, root, x) if x and op == "Mul" else None
    affine = find_affine(graph, shapes, quotient, axes[-1])
    if affine is None:
        return None
    kind, first_opset = ("LayerNormalization", 17) if x else ("RMSNormalization", 23)
    x = x or deviation
    last = len(shapes[x]) - 1
    core, hat = [], quotient
    if axes == [last] == [affine.axis] and graph.opset >= first_opset:
        hat = hat_of(affine.output)
        unit = ones(graph, shapes[x][last])
        epsilon = _epsilon(graph, node.output[0])
        core = [helper.make_node(kind, [x, unit], [hat], axis=-1, epsilon=epsilon)]
    values = (affine.scale, affine.shift, affine.parameter)
    return Form(kind, x, affine.output, hat, affine.axis, *values, core)


def _squared(graph: Graph, name: str) -> str | None:
    """d, where `name` is d^2 or d * d."""
    node = graph.producer(origin(graph, name), "Pow", "Mul")
    if node is None:
        return None
    if node.op_type == "Mul":
        return origin(graph, node.input[0]) if node.input[0] == node.input[1] else None
    return origin(graph, node.input[0]) if scalar(graph, node.input[1]) == 2 else None


def _centred(graph: Graph, shapes: Shapes, name: str, axes: list[int]) -> str | None:
    """x, where `name` is x - mean(x) over the same axes."""
    node = graph.producer(name, "Sub")
    mean = graph.producer(origin(graph, node.input[1]), "ReduceMean") if node else None
    if node is None or mean is None:
        return None
    x = origin(graph, node.input[0])
    same = origin(graph, mean.input[0]) == x
    return x if same and _reduced_axes(graph, mean, len(shapes[x])) == axes else None


def _twins(graph: Graph, shapes: Shapes, x: str | None, axes: list[int]) -> set[str]:
    """All tensors x - mean(x): some exporters compute the difference twice."""
    differences = [node.output[0] for node in graph.consumers.get(x or "", ())]
    return {name for name in differences if _centred(graph, shapes, name, axes) == x}


def _inverse_root(graph: Graph, variance: str) -> tuple[str, str] | None:
    """The tensor sqrt(variance + epsilon) and "Div", or its inverse and "Mul"."""
    total = reader(graph, variance, "Add")
    if total is None or _epsilon(graph, variance) is None:
        return None
    root = reader(graph, total.output[0], "Sqrt", "Pow")
    if root is None:
        return None
    if root.op_type == "Pow":
        power = scalar(graph, root.input[1])
        return {0.5: (root.output[0], "Div"), -0.5: (root.output[0], "Mul")}.get(power or 0)
    inverse = reader(graph, root.output[0], "Reciprocal", "Div")
    if inverse is not None and (
        inverse.op_type == "Reciprocal" or scalar(graph, inverse.input[0]) == 1
    ):
        return inverse.output[0], "Mul"
    return root.output[0], "Div"


def _epsilon(graph: Graph, variance: str) -> float | None:
    total = reader(graph, variance, "Add")
    values = [scalar(graph, name) for name in total.input] if total is not None else []
    return next((value for value in values if value is not None), None)


def _quotient(graph: Graph, root: str, op: str, deviations: set[str]) -> str | None:
    """d / root, or d * (1 / root)."""
    node = reader(graph, root, op)
    if node is None or origin(graph, other_input(graph, node, root)) not in deviations:
        return None
    upside_down = op == "Div" and origin(graph, node.input[1]) != root
    return None if upside_down else node.output[0]


def _factored(graph: Graph, shapes: Shapes, root: str, x: str) -> Form | None:
    """TensorFlow's x * a + (shift - mean * a) with a = scale / root."""
    product = reader(graph, root, "Mul")
    parameter = other_input(graph, product, root) if product is not None else ""
    scale = graph.constant(parameter) if parameter else None
    if product is None or scale is None:
        return None
    factor = product.output[0]
    times = {
        origin(graph, other_input(graph, node, factor)): node for node in graph.consumers[factor]
    }
    scaled = times.pop(x, None)
    if scaled is None or len(times) != 1:
        return None
    ((mean, shifted),) = times.items()
    difference = reader(graph, shifted.output[0], "Sub")
    shift = graph.constant(difference.input[0]) if difference is not None else None
    total = reader(graph, scaled.output[0], "Add")
    reduce = graph.producer(mean, "ReduceMean")
    if difference is None or shift is None or total is None or reduce is None:
        return None
    axis = channel_axis(scale, shapes[x], len(shapes[x]) - 1)
    if axis is None or difference.output[0] not in total.input:
        return None
    centre, hat = f"{total.output[0]}.centre", hat_of(total.output[0])
    core = [
        helper.make_node("Sub", [x, reduce.output[0]], [centre]),
        helper.make_node("Mul", [centre, root], [hat]),
    ]
    return make_form("LayerNormalization", x, total.output[0], axis, scale, shift, parameter, core)


def _reduced_axes(graph: Graph, node: NodeProto, rank: int) -> list[int]:
    """Axes of a ReduceMean: an attribute below opset 18, an input from there on."""
    axes = attribute(node, "axes")
    if axes is None and len(node.input) > 1:
        axes = graph.constant(node.input[1])
    return sorted(int(axis) % rank for axis in (range(rank) if axes is None else axes))
