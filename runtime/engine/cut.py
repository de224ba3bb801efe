"""Cut a model in two: the stem runs once a batch, the cone once a perturbation.

The cone is every node that a chosen affine reaches, the stem every other node that the image
reaches. What depends on neither (weights, and nodes that unpack them) goes to the side that reads
it. Needs the onnx package, so it is imported only when there is a model to cut.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import AttributeProto, ModelProto, NodeProto, ValueInfoProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, ModelInfo, from_metadata
from zotta_edge.runtime.engine.cost_model import Shape, work
from zotta_edge.runtime.engine.session import has_external_data
from zotta_edge.runtime.engine.shapes import trace


@dataclass(frozen=True)
class Halves:
    """Two serialized models; the cone keeps the metadata of the whole."""

    stem: bytes | None  # None: no node precedes the affines
    cone: bytes
    cone_share: float  # of a full pass's work


@dataclass(frozen=True)
class _Sides:
    """The nodes that the outputs depend on, in order."""

    stem: list[NodeProto]
    cone: list[NodeProto]
    constant: list[NodeProto]
    handed: list[str]  # what the cone reads and does not make; the image itself may be among it


def cut(content: bytes, chosen: Sequence[int] | None, path: str) -> Halves:
    """Cut the model file `content` at the affines of the chosen layers (None: as calibrated)."""
    model = parse(content, path)
    info = from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    affines = _affines(info, chosen, path)
    outputs = [LOGITS, *(layer.feature for layer in info.layers), EMBEDDING]
    sides = _split(live(model.graph.node, outputs), affines)
    names = [name for side in (sides.constant, sides.stem, sides.cone) for name in _made(side)]
    tensors = trace(model, names, sides.handed, path)
    declared = {tensor.name: tensor for tensor in (*model.graph.input, *model.graph.output)}
    declared |= tensors.declared
    stem_outputs = [*sides.handed, *outputs]
    stem = build(model, sides.stem, sides.constant, [IMAGE], stem_outputs, declared)
    free = [*sides.handed, *sorted(affines)]
    cone = build(model, sides.cone, sides.constant, free, outputs, declared)
    cone.metadata_props.extend(model.metadata_props)
    return Halves(
        stem.SerializeToString(deterministic=True) if sides.stem else None,
        cone.SerializeToString(deterministic=True),
        _share(model, sides, tensors.shapes),
    )


def parse(content: bytes, path: str) -> ModelProto:
    if has_external_data(content):
        raise ZottaError(f"{path} keeps its weights in other files: export it into a single file")
    try:
        return onnx.load_from_string(content)
    except DecodeError:
        raise ZottaError(
            f"{path} is not an ONNX model, or is damaged: copy or export it again"
        ) from None


def names_other_files(content: bytes) -> bool:
    """Whether a tensor anywhere in the model, in branches too, is stored in another file."""
    try:
        return _any_external(onnx.ModelProto.FromString(content))
    except (DecodeError, RecursionError):
        raise ZottaError("a model is damaged: copy or export it again") from None


def _any_external(message: Message) -> bool:
    if isinstance(message, onnx.TensorProto):
        return bool(message.external_data) or message.data_location == onnx.TensorProto.EXTERNAL
    values = [value for field, value in message.ListFields() if field.message_type]
    parts = chain.from_iterable([one] if isinstance(one, Message) else one for one in values)
    return any(_any_external(part) for part in parts)


def _affines(info: ModelInfo, chosen: Sequence[int] | None, path: str) -> set[str]:
    """Names of the inputs that adaptation will move."""
    if chosen is None and info.calibration is None:
        raise ZottaError(
            f"{path} is not calibrated: run `zotta-edge calibrate {path} --source DIR`"
        )
    layers = info.chosen if chosen is None else chosen
    for index in layers:
        if not 0 <= index < len(info.layers):
            raise ZottaError(f"{path} has layers 0 to {len(info.layers) - 1}, no layer {index}")
    norms = [norm for index in layers for norm in info.layers[index].norms]
    if not norms:
        raise ZottaError(f"{path}: the chosen layers {list(layers)} have no norms to adapt")
    return {name for norm in norms for name in (norm.scale, norm.shift)}


def live(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """Nodes that the outputs depend on: ONNX Runtime would execute the others as well."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed |= _reads(node)
    return kept[::-1]


def _split(nodes: Iterable[NodeProto], affines: Collection[str]) -> _Sides:
    """By reachability, in one walk along the order of the nodes."""
    sides = _Sides([], [], [], [])
    from_affine, from_image = set(affines), {IMAGE}
    for node in nodes:
        reads = _reads(node)
        if not from_affine.isdisjoint(reads):
            sides.cone.append(node)
            from_affine.update(node.output)
        elif not from_image.isdisjoint(reads):
            sides.stem.append(node)
            from_image.update(node.output)
        else:
            sides.constant.append(node)
    sides.handed.extend(sorted(from_image & _read_by(sides.cone)))
    return sides


def _reads(node: NodeProto) -> set[str]:
    """Names of the tensors that a node reads, those its sub-graphs capture included."""
    reads = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            reads |= _read_by(graph.node) | {output.name for output in graph.output}
    return reads


def _read_by(nodes: Iterable[NodeProto]) -> set[str]:
    return {name for node in nodes for name in _reads(node)}


def _made(nodes: Iterable[NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output if name]


def build(
    model: ModelProto,
    nodes: list[NodeProto],
    constant: list[NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    declared: Mapping[str, ValueInfoProto],
) -> ModelProto:
    """A model of `nodes`, the constants they need, and those of `outputs` that they make."""
    needed = live(constant, _read_by(nodes))
    stored, made = _read_by([*needed, *nodes]).union(inputs), set(_made(nodes))
    graph = helper.make_graph(
        [*needed, *nodes],
        model.graph.name,
        [declared[name] for name in inputs],
        [declared[name] for name in dict.fromkeys(outputs) if name in made],
        [tensor for tensor in model.graph.initializer if tensor.name in stored],
    )
    return helper.make_model(
        graph,
        ir_version=model.ir_version,
        opset_imports=model.opset_import,
        functions=model.functions,
    )


def _share(model: ModelProto, sides: _Sides, shapes: dict[str, Shape]) -> float:
    """The cone's part of the work that one sample takes."""
    known = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer} | shapes
    stem, cone = (sum(_work(node, known) for node in side) for side in (sides.stem, sides.cone))
    return cone / (stem + cone)


def _work(node: NodeProto, shapes: dict[str, Shape]) -> float:
    attributes = {a.name: a.i for a in node.attribute if a.type == AttributeProto.INT}
    inputs = [shapes.get(name, ()) for name in node.input]
    return work(node.op_type, inputs, [shapes[name] for name in _made([node])], attributes)
