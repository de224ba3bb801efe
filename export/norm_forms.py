"""The forms in which exporters write a normalization: one matcher a form.

A matcher looks at one node and answers with a `Form` if that node is the heart of a norm that reads
`input`, normalizes it to `hat`, and writes scale * hat + shift to `output`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.graph import Array, Graph, Shape, attribute, free_name

Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Form:
    """A norm as found: what it reads and writes, and new nodes that compute `hat`, if needed."""

    kind: str
    input: str
    output: str
    hat: str
    axis: int  # of the channels in `input`
    scale: Array  # [channels]
    shift: Array  # [channels]
    parameter: str  # the source's name for the scale
    core: list[NodeProto] = field(default_factory=list)


Matcher = Callable[[Graph, Shapes, NodeProto], Form | None]


def match(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """The norm whose heart is `node`, if it is one."""
    matcher = _MATCHERS.get(node.op_type)
    return matcher(graph, shapes, node) if matcher else None


def _layer_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """LayerNormalization, RMSNormalization and SimplifiedLayerNormalization over the last axis."""
    x, last = node.input[0], len(shapes[node.input[0]]) - 1
    scale = graph.constant(node.input[1])
    shift = _optional_constant(graph, node, 2)
    if attribute(node, "axis", -1) not in (-1, last) or scale is None or shift is None:
        return None
    if any(graph.consumers.get(name) for name in node.output[1:]):
        return None  # someone reads the mean or the deviation as well
    output, channels = node.output[0], scale.size
    core = helper.make_node(node.op_type, [x, _ones(graph, channels)], [_hat(output)])
    core.domain = node.domain
    core.attribute.extend(node.attribute)
    return _form(node.op_type, x, output, last, scale, shift, node.input[1], [core])


def _skip_layer_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """ONNX Runtime's fusion of a residual sum and a norm; the sum becomes nodes of its own."""
    simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    bias_at = 3 if simplified else 4
    scale = graph.constant(node.input[2])
    shift = np.zeros(1, np.float32) if simplified else _optional_constant(graph, node, 3)
    if scale is None or shift is None or any(node.output[1:3]):
        return None
    output = node.output[0]
    total = node.output[3] if len(node.output) > 3 and node.output[3] else f"{output}.sum"
    terms = [*node.input[:2], *(name for name in node.input[bias_at : bias_at + 1] if name)]
    inner = f"{output}.residual" if len(terms) > 2 else total
    core = [helper.make_node("Add", terms[:2], [inner])]
    if len(terms) > 2:
        core.append(helper.make_node("Add", [inner, terms[2]], [total]))
    op = "SimplifiedLayerNormalization" if simplified else "LayerNormalization"
    epsilon = attribute(node, "epsilon", 1e-12)
    ones = _ones(graph, scale.size)
    core.append(helper.make_node(op, [total, ones], [_hat(output)], epsilon=epsilon, axis=-1))
    axis = len(shapes[output]) - 1
    return _form(op, total, output, axis, scale, shift, node.input[2], core)


def _group_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """GroupNormalization; its scale is per group in opset 18 and per channel from 21."""
    x, output = node.input[0], node.output[0]
    channels, groups = shapes[x][1], attribute(node, "num_groups")
    scale, shift = graph.constant(node.input[1]), graph.constant(node.input[2])
    if scale is None or shift is None:
        return None
    per_channel = channels // scale.size
    core = _grouped_core(graph, x, output, groups, attribute(node, "epsilon", 1e-5))
    scale, shift = np.repeat(scale, per_channel), np.repeat(shift, per_channel)
    return _form("GroupNormalization", x, output, 1, scale, shift, node.input[1], core)


def _instance_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """InstanceNormalization, or the GroupNorm that older exporters make of it."""
    scale, shift = graph.constant(node.input[1]), graph.constant(node.input[2])
    if scale is None or shift is None:
        return None
    split = graph.producer(node.input[0], "Reshape")
    join = graph.single_consumer(node.output[0], "Reshape")
    if split is not None and join is not None and len(shapes[split.input[0]]) > 2:
        form = _reshaped_group_norm(graph, shapes, (split, node, join), scale, shift)
        if form is not None:
            return form
    output, epsilon = node.output[0], attribute(node, "epsilon", 1e-5)
    unit = [_ones(graph, scale.size), _zeros(graph, scale.size)]
    core = helper.make_node(
        "InstanceNormalization", [node.input[0], *unit], [_hat(output)], epsilon=epsilon
    )
    return _form(
        "InstanceNormalization", node.input[0], output, 1, scale, shift, node.input[1], [core]
    )


def _reshaped_group_norm(
    graph: Graph, shapes: Shapes, nodes: tuple[NodeProto, ...], scale: Array, shift: Array
) -> Form | None:
    """Reshape to [batch, groups, -1], InstanceNormalization, Reshape back, then Mul and Add."""
    split, norm, join = nodes
    x, hat = split.input[0], join.output[0]
    channels, groups = shapes[x][1], scale.size
    if shapes[hat] != shapes[x] or channels % groups:
        return None
    affine = _affine(graph, shapes, hat, 1) or _Affine(1, np.ones(1), np.zeros(1), hat, "")
    inner_scale = np.repeat(scale, channels // groups)
    inner_shift = np.repeat(shift, channels // groups)
    core = _grouped_core(graph, x, affine.output, groups, attribute(norm, "epsilon", 1e-5))
    scale = inner_scale * affine.scale
    shift = inner_shift * affine.scale + affine.shift
    return _form("GroupNormalization", x, affine.output, 1, scale, shift, affine.parameter, core)


def _grouped_core(
    graph: Graph, x: str, output: str, groups: int, epsilon: float
) -> list[NodeProto]:
    """GroupNorm by InstanceNormalization: ONNX Runtime runs this 2 to 15 times as fast on a CPU."""
    shape = graph.add_constant(f"zotta.groups.{groups}", np.array([0, groups, -1], np.int64))
    unit = [_ones(graph, groups), _zeros(graph, groups)]
    split, normal, back = (f"{output}.{part}" for part in ("split", "normal", "shape"))
    return [
        helper.make_node("Reshape", [x, shape], [split]),
        helper.make_node("InstanceNormalization", [split, *unit], [normal], epsilon=epsilon),
        helper.make_node("Shape", [x], [back]),
        helper.make_node("Reshape", [normal, back], [_hat(output)]),
    ]


def _batch_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """BatchNormalization: running statistics go into the weights before it, where there are any."""
    if attribute(node, "training_mode", 0) or len([name for name in node.output if name]) > 1:
        raise ZottaError(
            f"{node.name or 'a BatchNormalization'} is in training mode: call model.eval() before "
            "the export"
        )
    values = [graph.constant(name) for name in node.input[1:5]]
    if any(value is None for value in values):
        return None
    scale, shift, mean, variance = (np.asarray(value, np.float64) for value in values)
    gain = 1 / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    output = node.output[0]
    core = _fold_statistics(graph, node.input[0], output, gain, mean)
    if core is None:
        core = helper.make_node("BatchNormalization", list(node.input), [_hat(output)])
        core.input[1], core.input[2] = _ones(graph, scale.size), _zeros(graph, scale.size)
        core.attribute.extend(node.attribute)
    x = node.input[0]
    return _form("BatchNormalization", x, output, 1, scale, shift, node.input[1], [core])


def _fold_statistics(
    graph: Graph, x: str, output: str, gain: Array, mean: Array
) -> NodeProto | None:
    """The Conv or Gemm before a BatchNorm, computing (W x + b - mean) * gain."""
    source = graph.producer(x, "Conv", "ConvTranspose", "Gemm")
    if source is None or graph.single_consumer(x, "BatchNormalization") is None:
        return None
    axis = _output_axis(source)
    weight = graph.constant(source.input[1])
    bias = _optional_constant(graph, source, 2)
    if axis is None or weight is None or bias is None:
        return None
    shape = [1] * weight.ndim
    shape[axis] = -1
    folded = np.asarray(weight * gain.reshape(shape), np.float32)
    shift = np.asarray((np.broadcast_to(bias, gain.shape) - mean) * gain, np.float32)
    node = NodeProto()
    node.CopyFrom(source)
    del node.input[1:], node.output[:]
    for name, value in ((f"{output}.weight", folded), (f"{output}.bias", shift)):
        node.input.append(graph.add_constant(free_name(name, graph.names()), value))
    node.output.append(_hat(output))
    return node


def _output_axis(node: NodeProto) -> int | None:
    """The axis of the weight that counts outputs; None where folding would not be that simple."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if attribute(node, "group", 1) == 1 else None
    plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
    return (0 if attribute(node, "transB", 0) else 1) if plain else None


def _decomposed(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """mean(d^2) + epsilon -> root -> d / root, then Mul and Add; d is x (RMS) or x - mean(x)."""
    deviation = _squared(graph, node.input[0])
    if deviation is None:
        return None
    centred = _centred(graph, deviation)
    x = centred or deviation
    inverse = _inverse_root(graph, node.output[0])
    if inverse is None or x not in shapes:
        return None
    root, op = inverse
    axes = _reduced_axes(graph, node, len(shapes[x]))
    quotient = _quotient(graph, root, op, {x} if centred else set(), deviation)
    if quotient is None:
        return _factored(graph, shapes, root, x) if centred and op == "Mul" else None
    affine = _affine(graph, shapes, quotient, axes[-1])
    if affine is None:
        return None
    kind = "LayerNormalization" if centred else "RMSNormalization"
    last = len(shapes[x]) - 1
    core, hat = [], quotient
    if axes == [last] == [affine.axis] and graph.opset >= (17 if centred else 23):
        hat = _hat(affine.output)
        epsilon = _epsilon(graph, node.output[0])
        ones = _ones(graph, shapes[x][last])
        core = [helper.make_node(kind, [x, ones], [hat], axis=-1, epsilon=epsilon)]
    return Form(kind, x, affine.output, hat, *_affine_values(affine), affine.parameter, core)


def _squared(graph: Graph, name: str) -> str | None:
    """d, where `name` is d^2 or d * d."""
    node = graph.producer(_origin(graph, name), "Pow", "Mul")
    if node is None:
        return None
    if node.op_type == "Mul":
        return _origin(graph, node.input[0]) if node.input[0] == node.input[1] else None
    return _origin(graph, node.input[0]) if _scalar(graph, node.input[1]) == 2 else None


def _centred(graph: Graph, name: str) -> str | None:
    """x, where `name` is x - mean(x)."""
    node = graph.producer(name, "Sub")
    mean = graph.producer(_origin(graph, node.input[1]), "ReduceMean") if node else None
    if node is None or mean is None:
        return None
    x = _origin(graph, node.input[0])
    return x if _origin(graph, mean.input[0]) == x else None


def _inverse_root(graph: Graph, variance: str) -> tuple[str, str] | None:
    """The tensor sqrt(variance + epsilon) and "Div", or its inverse and "Mul"."""
    total = _reader(graph, variance, "Add")
    if total is None or _epsilon(graph, variance) is None:
        return None
    root = _reader(graph, total.output[0], "Sqrt", "Pow")
    if root is None:
        return None
    if root.op_type == "Pow":
        power = _scalar(graph, root.input[1])
        return {0.5: (root.output[0], "Div"), -0.5: (root.output[0], "Mul")}.get(power or 0)
    inverse = _reader(graph, root.output[0], "Reciprocal", "Div")
    if inverse is not None and (
        inverse.op_type == "Reciprocal" or _scalar(graph, inverse.input[0]) == 1
    ):
        return inverse.output[0], "Mul"
    return root.output[0], "Div"


def _epsilon(graph: Graph, variance: str) -> float | None:
    total = _reader(graph, variance, "Add")
    values = [_scalar(graph, name) for name in total.input] if total is not None else []
    return next((value for value in values if value is not None), None)


def _quotient(graph: Graph, root: str, op: str, centred: set[str], deviation: str) -> str | None:
    """d / root or d * (1 / root); exporters may compute d a second time for it."""
    node = _reader(graph, root, op)
    if node is None:
        return None
    others = [_origin(graph, name) for name in node.input if _origin(graph, name) != root]
    if len(others) != 1 or (op == "Div" and _origin(graph, node.input[1]) != root):
        return None
    same = others[0] == deviation or _centred(graph, others[0]) in centred
    return node.output[0] if same else None


def _factored(graph: Graph, shapes: Shapes, root: str, x: str) -> Form | None:
    """TensorFlow's x * a + (shift - mean * a) with a = scale / root."""
    product = _reader(graph, root, "Mul")
    parameter = _other(graph, product, root) if product is not None else ""
    scale = graph.constant(parameter) if parameter else None
    if product is None or scale is None:
        return None
    factor = product.output[0]
    times = {_origin(graph, _other(graph, node, factor)): node for node in graph.consumers[factor]}
    scaled = times.pop(x, None)
    if scaled is None or len(times) != 1:
        return None
    ((mean, shifted),) = times.items()
    difference = _reader(graph, shifted.output[0], "Sub")
    shift = graph.constant(difference.input[0]) if difference is not None else None
    total = _reader(graph, scaled.output[0], "Add")
    reduce = graph.producer(mean, "ReduceMean")
    if difference is None or shift is None or total is None or reduce is None:
        return None
    axis = _channel_axis(scale, shapes[x], len(shapes[x]) - 1)
    if axis is None or difference.output[0] not in total.input:
        return None
    centre, hat = f"{total.output[0]}.centre", _hat(total.output[0])
    core = [
        helper.make_node("Sub", [x, reduce.output[0]], [centre]),
        helper.make_node("Mul", [centre, root], [hat]),
    ]
    return _form("LayerNormalization", x, total.output[0], axis, scale, shift, parameter, core)


@dataclass(frozen=True)
class _Affine:
    axis: int
    scale: Array
    shift: Array
    output: str
    parameter: str


def _affine(graph: Graph, shapes: Shapes, hat: str, hint: int) -> _Affine | None:
    """The constant per-channel Mul and Add that read `hat`; one of them may be missing."""
    found: dict[str, Array] = {}
    axis, output, parameter = hint, hat, ""
    for op in ("Mul", "Add"):
        node = _reader(graph, output, op)
        name = _other(graph, node, output) if node is not None else ""
        value = graph.constant(name) if name else None
        place = _channel_axis(value, shapes[hat], hint) if value is not None else None
        if node is None or value is None or place is None or (found and place != axis):
            continue
        found[op], axis, output = np.ravel(value), place, node.output[0]
        parameter = parameter or name
    if not found:
        return None
    scale, shift = found.get("Mul", np.ones(1)), found.get("Add", np.zeros(1))
    channels = shapes[hat][axis]
    return _Affine(axis, _spread(scale, channels), _spread(shift, channels), output, parameter)


def _affine_values(affine: _Affine) -> tuple[int, Array, Array]:
    return affine.axis, affine.scale, affine.shift


def _channel_axis(value: Array, shape: Shape, hint: int) -> int | None:
    """The one axis along which a constant differs, if it is as long as that of the tensor."""
    padded = (1,) * (len(shape) - value.ndim) + value.shape
    wide = [axis for axis, size in enumerate(padded) if size != 1]
    if not wide and shape[hint] == 1:
        return hint
    if len(padded) != len(shape) or len(wide) != 1 or padded[wide[0]] != shape[wide[0]]:
        return None
    return wide[0]


def _reduced_axes(graph: Graph, node: NodeProto, rank: int) -> list[int]:
    """Axes of a ReduceMean: an attribute below opset 18, an input from there on."""
    axes = attribute(node, "axes")
    if axes is None and len(node.input) > 1:
        axes = graph.constant(node.input[1])
    return sorted(int(axis) % rank for axis in (range(rank) if axes is None else axes))


def _origin(graph: Graph, name: str) -> str:
    """`name` before casts to float32 and copies, which change nothing in an fp32 model."""
    while (node := graph.producer(name, "Identity", "Cast")) is not None:
        if node.op_type == "Cast" and attribute(node, "to") != TensorProto.FLOAT:
            break
        name = node.input[0]
    return name


def _reader(graph: Graph, name: str, *ops: str) -> NodeProto | None:
    """The only reader of `name`, after such casts and copies."""
    while (node := graph.single_consumer(name, "Identity", "Cast")) is not None:
        name = node.output[0]
    return graph.single_consumer(name, *ops)


def _other(graph: Graph, node: NodeProto, name: str) -> str:
    """The input of a node with two inputs that does not come from `name`."""
    first, second = map(str, node.input)
    return second if _origin(graph, first) == _origin(graph, name) else first


def _scalar(graph: Graph, name: str) -> float | None:
    value = graph.constant(name)
    return float(value.ravel()[0]) if value is not None and value.size == 1 else None


def _optional_constant(graph: Graph, node: NodeProto, place: int) -> Array | None:
    """The constant input at `place`, zero where the node has none, None if it is not constant."""
    if len(node.input) <= place or not node.input[place]:
        return np.zeros(1, np.float32)
    return graph.constant(node.input[place])


def _form(
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
    scale, shift = _spread(scale, channels), _spread(shift, channels)
    return Form(kind, x, output, _hat(output), axis, scale, shift, parameter, core)


def _spread(values: Array, channels: int) -> Array:
    return np.broadcast_to(np.ravel(values), (channels,)).astype(np.float32)


def _hat(output: str) -> str:
    return f"{output}.hat"


def _ones(graph: Graph, size: int) -> str:
    return graph.add_constant(f"zotta.ones.{size}", np.ones(size, np.float32))


def _zeros(graph: Graph, size: int) -> str:
    return graph.add_constant(f"zotta.zeros.{size}", np.zeros(size, np.float32))


_MATCHERS: dict[str, Matcher] = {
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_layer_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "BatchNormalization": _batch_norm,
    "ReduceMean": _decomposed,
}
