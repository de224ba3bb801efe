"""Norms that exporters write as one operator, possibly between two Reshapes."""

import numpy as np
from onnx import NodeProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.norms.norm_form import (
    Affine,
    Form,
    Matcher,
    behind,
    find_affine,
    hat_of,
    make_form,
    ones,
    optional_constant,
    zeros,
)
from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute, free_name
from zotta_edge.graph.shapes import Shapes


def _layer_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """LayerNormalization, RMSNormalization and SimplifiedLayerNormalization over the last axis."""
    x, last = node.input[0], len(shapes[node.input[0]]) - 1
    scale = graph.constant(node.input[1])
    shift = optional_constant(graph, node, 2)
    if scale is None or shift is None:
        return None
    if any(graph.consumers.get(name) for name in node.output[1:]):
        return None  # the mean or the deviation is used elsewhere
    if attribute(node, "axis", -1) not in (-1, last):  # several axes, each place with its own scale
        return behind(shapes, node, _channels_of(graph, x, last), node.op_type)
    output, channels = node.output[0], scale.size
    core = helper.make_node(node.op_type, [x, ones(graph, channels)], [hat_of(output)])
    core.domain = node.domain
    core.attribute.extend(node.attribute)
    return make_form(node.op_type, x, output, last, scale, shift, node.input[1], [core])


def _channels_of(graph: Graph, x: str, last: int) -> int:
    """Of maps the first axis, unless they were just turned; of anything else the last."""
    turned = graph.producer(x, "Transpose")
    return 1 if last == 3 and turned is None else last


def _skip_layer_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """ONNX Runtime's fused residual sum and norm; the sum becomes separate nodes."""
    simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    bias_at = 3 if simplified else 4
    scale = graph.constant(node.input[2])
    shift = np.zeros(1, np.float32) if simplified else optional_constant(graph, node, 3)
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
    core.append(
        helper.make_node(
            op, [total, ones(graph, scale.size)], [hat_of(output)], epsilon=epsilon, axis=-1
        )
    )
    axis = len(shapes[output]) - 1
    return make_form(op, total, output, axis, scale, shift, node.input[2], core)


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
    return make_form("GroupNormalization", x, output, 1, scale, shift, node.input[1], core)


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
    unit = [ones(graph, scale.size), zeros(graph, scale.size)]
    core = helper.make_node(
        "InstanceNormalization", [node.input[0], *unit], [hat_of(output)], epsilon=epsilon
    )
    return make_form(
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
    affine = find_affine(graph, shapes, hat, 1) or Affine(1, np.ones(1), np.zeros(1), hat, "")
    inner_scale = np.repeat(scale, channels // groups)
    inner_shift = np.repeat(shift, channels // groups)
    core = _grouped_core(graph, x, affine.output, groups, attribute(norm, "epsilon", 1e-5))
    scale = inner_scale * affine.scale
    shift = inner_shift * affine.scale + affine.shift
    return make_form(
        "GroupNormalization", x, affine.output, 1, scale, shift, affine.parameter, core
    )


def _grouped_core(
    graph: Graph, x: str, output: str, groups: int, epsilon: float
) -> list[NodeProto]:
    """GroupNorm by InstanceNormalization: ONNX Runtime runs this 2 to 15 times as fast on a CPU."""
    shape = graph.add_constant(f"zotta.groups.{groups}", np.array([0, groups, -1], np.int64))
    unit = [ones(graph, groups), zeros(graph, groups)]
    split, normal, back = (f"{output}.{part}" for part in ("split", "normal", "shape"))
    return [
        helper.make_node("Reshape", [x, shape], [split]),
        helper.make_node("InstanceNormalization", [split, *unit], [normal], epsilon=epsilon),
        helper.make_node("Shape", [x], [back]),
        helper.make_node("Reshape", [normal, back], [hat_of(output)]),
    ]


def _batch_norm(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """BatchNormalization: running statistics are folded into preceding weights, if any."""
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
        core = helper.make_node("BatchNormalization", list(node.input), [hat_of(output)])
        core.input[1], core.input[2] = ones(graph, scale.size), zeros(graph, scale.size)
        core.attribute.extend(node.attribute)
    x = node.input[0]
    return make_form("BatchNormalization", x, output, 1, scale, shift, node.input[1], [core])


def _fold_statistics(
    graph: Graph, x: str, output: str, gain: Array, mean: Array
) -> NodeProto | None:
    """The Conv or Gemm before a BatchNorm, computing (W x + b - mean) * gain."""
    source = graph.producer(x, "Conv", "ConvTranspose", "Gemm")
    if source is None or graph.single_consumer(x, "BatchNormalization") is None:
        return None
    axis = _output_axis(source)
    weight = graph.constant(source.input[1])
    bias = optional_constant(graph, source, 2)
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
    node.output.append(hat_of(output))
    return node


def _output_axis(node: NodeProto) -> int | None:
    """The weight's axis of output channels; None if the statistics cannot be folded into it."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if attribute(node, "group", 1) == 1 else None
    plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
    return (0 if attribute(node, "transB", 0) else 1) if plain else None


NATIVE: dict[str, Matcher] = {
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_layer_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "BatchNormalization": _batch_norm,
}
