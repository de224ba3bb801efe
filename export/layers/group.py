"""Group norms into ordered layers, and give the graph one pooled feature for each of them.

A layer is a transformer block or a residual stage. It ends in a cut: a tensor through which every
path from the image to the logits passes, such as the residual stream between two blocks.
"""

import math
import re
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from onnx import TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.layers.cuts import Cuts
from zotta_edge.export.norms.expose import ExposedNorm
from zotta_edge.export.sources.classifier import Classifier
from zotta_edge.format import EMBEDDING, LOGITS, Kind, Layer
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import free_name
from zotta_edge.graph.shapes import Shape
from zotta_edge.tensor_layouts import LAYOUTS

# Containers whose index counts blocks or stages: blocks.3, encoder.layer.3, encoder_layer_3, h.3,
# layer3, stages.3, features.3, _blocks.3, denseblock3; conv3_block1 and block3a are Keras's.
_BLOCK = re.compile(
    r"(?:^|.*?\.)(?:"
    r"_?(?:encoder_)?(?:blocks?|layers?|stages?|resblocks|features|denseblock)[._]*\d+"
    r"|h[._]\d+|conv\d+(?=_block))(?!\d)"
)
_HEAD_ENDS = ("Gemm", "MatMul", "Conv", "MatMulInteger", "ConvInteger", "MatMulNBits")
_CODING = ("DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear")


_Norms = tuple[ExposedNorm, ...]


@dataclass(frozen=True)
class _Group:
    """Norms that form one layer."""

    name: str
    norms: _Norms


def add_features(
    classifier: Classifier, norms: _Norms, pattern: str | None = None
) -> tuple[Layer, ...]:
    """Add an output `feature.<i>` for each layer, and `embedding`, to the graph.

    Parameters
    ----------
    classifier
        Changed in place.
    norms
        As `expose_norms` returns them.
    pattern
        A regular expression that finds a norm's layer in its name: the first group, or all that it
        matches. None: by the usual names of blocks and stages, else by the structure of the graph.

    Returns
    -------
    tuple of Layer
        In the order of the graph.
    """
    graph = classifier.graph
    cuts = Cuts(graph, classifier.shapes, norms, tuple(classifier.outputs) or (LOGITS,))
    if pattern is not None:
        groups = _by_pattern(norms, pattern)
    else:
        groups = _by_name(norms, _BLOCK) or _by_structure(norms, cuts)
    layers = tuple(
        _layer(f"feature.{index}", group, tensor, cuts)
        for index, (group, tensor) in enumerate(_with_tensors(groups, cuts))
    )
    for layer in layers:
        _add_pooled(graph, layer.tensor, layer.feature, layer.kind, layer.channels)
    if not layers:
        raise ZottaError(
            "no norm of the model lies before its first branch that stays open to the end, so no "
            "single tensor shows what it does: name others with --layers"
        )
    _add_embedding(graph, cuts, layers[-1])
    _fix_others(graph, norms, layers)
    graph.finish()
    return layers


def _fix_others(graph: Graph, norms: _Norms, layers: tuple[Layer, ...]) -> None:
    """Norms behind the last cut, as in a detector's branches, belong to no layer and stay."""
    kept = {norm.name for layer in layers for norm in layer.norms}
    fixed = {
        name
        for exposed in norms
        if exposed.norm.name not in kept
        for name in (exposed.norm.scale, exposed.norm.shift)
    }
    inputs = graph.model.graph.input
    for place in reversed(range(len(inputs))):
        if inputs[place].name in fixed:
            del inputs[place]


def _by_pattern(norms: _Norms, pattern: str) -> list[_Group]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ZottaError(f"--layers {pattern!r} is not a regular expression: {error}") from error
    if not any(compiled.search(exposed.norm.name) for exposed in norms):
        raise ZottaError(
            f"--layers {pattern!r} matches none of the {len(norms)} norms, with names such as "
            f"{norms[0].norm.name} and {norms[-1].norm.name}"
        )
    return _by_name(norms, compiled, at_least=1)


def _by_name(norms: _Norms, pattern: re.Pattern[str], at_least: int = 2) -> list[_Group]:
    """One group a key; `stem` for what precedes them, and one for each norm after the last."""
    keys = [_key(pattern, exposed.norm.name) for exposed in norms]
    known = [index for index, key in enumerate(keys) if key]
    if len({keys[index] for index in known}) < at_least:
        return []
    members: dict[str, list[ExposedNorm]] = {}
    for index, exposed in enumerate(norms):
        if index < known[0]:
            key = "stem"
        elif index > known[-1]:
            key = exposed.norm.name
        else:  # a norm between two blocks, as in a transition, opens the next one
            key = next(keys[later] for later in known if later >= index)
        members.setdefault(key, []).append(exposed)
    return [_Group(key, tuple(group)) for key, group in members.items()]


def _key(pattern: re.Pattern[str], name: str) -> str:
    match = pattern.search(name)
    if match is None:
        return ""
    return str(match.group(1) or "") if pattern.groups else match.group(0)


def _by_structure(norms: _Norms, cuts: Cuts) -> list[_Group]:
    """Norms between two cuts form a part; halves of blocks, and blocks of a stage, are joined."""
    parts = _between_cuts(norms, cuts)
    final = parts[-1] if len(parts) > 1 and _is_final(parts[-2], parts[-1], cuts) else ()
    body = parts[:-1] if final else parts
    attention = [
        cuts.count("Softmax", cuts.entry[part[0].output], _start(parts[index + 1 :], cuts)) > 0
        for index, part in enumerate(body)
    ]
    # The last part may hold all of a detector's head, which has a Softmax of its own.
    attends = any(attention[:-1]) or (any(attention) and not cuts.ends)
    joined = _join_halves(body, attention) if attends else _join_stages(body, cuts)
    groups: list[_Group] = []
    for index, part in enumerate([*joined, *([final] if final else [])]):
        path = _common_path([exposed.norm.name for exposed in part])
        inside = sum(f"{exposed.norm.name}.".startswith(f"{path}.") for exposed in norms)
        name = path if path and inside == len(part) else f"layer{index}"
        groups.append(_Group(free_name(name, {group.name for group in groups}), part))
    return groups


def _between_cuts(norms: _Norms, cuts: Cuts) -> list[_Norms]:
    parts: list[_Norms] = [norms[:1]]
    for exposed in norms[1:]:
        if cuts.between(_end(parts[-1], cuts), cuts.entry[exposed.output]):
            parts.append((exposed,))
        else:
            parts[-1] += (exposed,)
    return parts


def _is_final(before: _Norms, last: _Norms, cuts: Cuts) -> bool:
    """Whether `last` is a single norm between the last layer's output and the head."""
    entry = cuts.entry[last[0].output]
    stream = cuts.output_after(_end(before, cuts), entry)
    reads_stream = stream is not None and cuts.count_heavy(cuts.place[stream], entry) == 0
    return len(last) == 1 and reads_stream and cuts.count_heavy(_end(last, cuts), math.inf) <= 1


def _join_halves(parts: list[_Norms], attention: list[bool]) -> list[_Norms]:
    """The MLP half of a transformer block follows its attention half."""
    joined: list[_Norms] = []
    for part, attends in zip(parts, attention, strict=True):
        if joined and not attends:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _join_stages(parts: list[_Norms], cuts: Cuts) -> list[_Norms]:
    """Blocks of a stage leave tensors of one shape."""
    joined: list[_Norms] = []
    shape: Shape = ()
    for index, part in enumerate(parts):
        tensor = cuts.output_after(_end(part, cuts), _start(parts[index + 1 :], cuts))
        before, shape = shape, cuts.shapes[tensor] if tensor else ()
        if joined and shape == before:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _common_path(names: list[str]) -> str:
    parts = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(part[0] for part in takewhile(lambda part: len(set(part)) == 1, parts))


def _with_tensors(groups: list[_Group], cuts: Cuts) -> list[tuple[_Group, str]]:
    """Each layer's output; a group without one before the next group starts is merged into it."""
    pairs: list[tuple[_Group, str]] = []
    waiting: _Norms = ()
    for index, group in enumerate(groups):
        group = _Group(group.name, waiting + group.norms)
        limit = _start([later.norms for later in groups[index + 1 :]], cuts)
        tensor = cuts.output_after(_end(group.norms, cuts), limit)
        waiting = () if tensor else group.norms
        if tensor:
            pairs.append((group, tensor))
    return pairs


def _end(norms: _Norms, cuts: Cuts) -> int:
    return max(cuts.place[exposed.output] for exposed in norms)


def _start(parts: list[_Norms], cuts: Cuts) -> float:
    """Place of the first node of these norms; infinity if there are none."""
    return min((cuts.entry[exposed.output] for part in parts for exposed in part), default=math.inf)


def _layer(feature: str, group: _Group, tensor: str, cuts: Cuts) -> Layer:
    kind = cuts.kind(tensor)
    norms = tuple(exposed.norm for exposed in group.norms)
    return Layer(group.name, feature, tensor, kind, _channels(cuts, tensor), norms)


def _channels(cuts: Cuts, tensor: str) -> int:
    return cuts.shapes[tensor][LAYOUTS[cuts.kind(tensor)].channel_axis]


def _add_pooled(graph: Graph, tensor: str, output: str, kind: Kind, channels: int) -> None:
    """An output that is the mean of `tensor` over all but samples and channels."""
    axes = LAYOUTS[kind].pooled_axes
    if not axes:
        node = helper.make_node("Identity", [tensor], [output], name=output)
    elif graph.opset < 18:
        node = helper.make_node("ReduceMean", [tensor], [output], output, axes=axes, keepdims=0)
    else:
        name = "zotta.axes." + ".".join(map(str, axes))
        constant = graph.add_constant(name, np.array(axes, np.int64))
        node = helper.make_node("ReduceMean", [tensor, constant], [output], output, keepdims=0)
    shape: list[int | str] = ["batch", channels]
    graph.model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
    graph.append(node)


def _add_embedding(graph: Graph, cuts: Cuts, last: Layer) -> None:
    """The vector that the classifier head reads; the last feature where there is no such head."""
    if LOGITS not in cuts.outputs:
        _add_pooled(graph, last.tensor, EMBEDDING, last.kind, last.channels)
        return
    name: str | None = LOGITS
    node = graph.producers[LOGITS]
    while node.op_type not in _HEAD_ENDS:
        name = next((source for source in node.input if source in cuts.dependent), None)
        if name not in graph.producers:
            break
        node = graph.producers[name]
    source = next((source for source in node.input if source in cuts.dependent), "")
    source = _before_codes(graph, cuts, source)
    if node.op_type not in _HEAD_ENDS or not cuts.usable(source):
        source = last.tensor
    _add_pooled(graph, source, EMBEDDING, cuts.kind(source), _channels(cuts, source))


def _before_codes(graph: Graph, cuts: Cuts, name: str) -> str:
    """The float tensor that an integer product's codes were made of."""
    source = name
    while (coded := graph.producer(source, *_CODING)) is not None:
        source = coded.input[0]
    return source if cuts.usable(source) else name
