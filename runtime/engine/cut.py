"""Cut a model in two: the stem runs once a batch, the cone once a perturbation.

The cone is every node that a chosen affine reaches, the stem every other node that the image
reaches. What depends on neither (weights, and nodes that unpack them) goes to the side that reads
it. Needs the onnx package, so it is imported only when there is a model to cut.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, ModelProto, NodeProto, ValueInfoProto

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, ModelInfo, from_metadata
from zotta_edge.graph.cost_model import cost
from zotta_edge.graph.nodes import made, read_by, reads
from zotta_edge.graph.shapes import Shape, ShapeProbe, follow_batch
from zotta_edge.graph.subgraph import build, live, parse
from zotta_edge.runtime.engine.model_info import image_axes, session_info


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
    outputs = [*info.answers, *(layer.feature for layer in info.layers), EMBEDDING]
    return halves(model, sorted(_affines(info, chosen, path)), outputs, path)


def halves(model: ModelProto, affines: Sequence[str], outputs: Sequence[str], path: str) -> Halves:
    """Cut a model where these inputs of it come in."""
    sides = _split(live(model.graph.node, outputs), affines)
    names = made([*sides.constant, *sides.stem, *sides.cone])
    shapes, handed = trace(model, names, sides.handed, path)
    stem_outputs = [*sides.handed, *outputs]
    stem = build(model, sides.stem, [IMAGE], stem_outputs, handed, sides.constant)
    free = [*sides.handed, *affines]
    cone = build(model, sides.cone, free, outputs, handed, sides.constant)
    cone.metadata_props.extend(model.metadata_props)
    return Halves(
        stem.SerializeToString(deterministic=True) if sides.stem else None,
        cone.SerializeToString(deterministic=True),
        _share(model, sides, shapes),
    )


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


def _split(nodes: Iterable[NodeProto], affines: Collection[str]) -> _Sides:
    """By reachability, in one walk along the order of the nodes."""
    sides = _Sides([], [], [], [])
    from_affine, from_image = set(affines), {IMAGE}
    for node in nodes:
        read = reads(node)
        if not from_affine.isdisjoint(read):
            sides.cone.append(node)
            from_affine.update(node.output)
        elif not from_image.isdisjoint(read):
            sides.stem.append(node)
            from_image.update(node.output)
        else:
            sides.constant.append(node)
    sides.handed.extend(sorted(from_image & read_by(sides.cone)))
    return sides


def trace(
    model: ModelProto, names: Sequence[str], handed: Sequence[str], path: str
) -> tuple[dict[str, Shape], dict[str, ValueInfoProto]]:
    """Shapes of `names` for one image, and declarations of `handed` for any number of images.

    The interface of the model is checked on the way.
    """
    probe = ShapeProbe(model, names, handed)
    axes = image_axes(session_info(probe.session, path).preprocessing)
    try:
        single, double = (probe.run(IMAGE, axes, batch) for batch in (1, 2))
    except ZottaError as error:
        raise ZottaError(f"{path}: {error}") from error
    return single, {
        name: probe.declaration(name, follow_batch(single[name], double[name]))
        for name in handed
        if name != IMAGE
    }


def _share(model: ModelProto, sides: _Sides, shapes: Mapping[str, Shape]) -> float:
    """The cone's part of what one sample costs."""
    known = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer} | dict(shapes)
    stem, cone = (sum(_cost(node, known) for node in side) for side in (sides.stem, sides.cone))
    return cone / (stem + cone)


def _cost(node: NodeProto, shapes: Mapping[str, Shape]) -> float:
    attributes = {a.name: a.i for a in node.attribute if a.type == AttributeProto.INT}
    inputs = [shapes.get(name, ()) for name in node.input]
    return cost(node.op_type, inputs, [shapes[name] for name in made([node])], attributes)
