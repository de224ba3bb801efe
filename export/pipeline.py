"""The whole export: source -> adaptable fp32 graph -> quantized graph -> checked file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.check import (
    FOUND_TOLERANCE,
    HALF_TOLERANCE,
    SOURCE_TOLERANCE,
    check_adaptable,
    check_images,
    check_quantized,
    dead_affines,
    relative_time,
)
from zotta_edge.export.dead import without_dead
from zotta_edge.export.images import sampled
from zotta_edge.export.layers.group import add_features
from zotta_edge.export.norms.expose import expose_norms
from zotta_edge.export.norms.fold import fold_batch_norms
from zotta_edge.export.preprocessing import found as found_by_trial
from zotta_edge.export.preprocessing import stated
from zotta_edge.export.quantize.found import found_precision, found_scheme
from zotta_edge.export.quantize.fp8 import quantize_fp8
from zotta_edge.export.quantize.int8 import quantize_int8
from zotta_edge.export.quantize.target import describe_machine, resolve_target
from zotta_edge.export.sources.classifier import Classifier, as_classifier
from zotta_edge.export.sources.inputs import bind_inputs
from zotta_edge.export.sources.obstacles import one_line_errors
from zotta_edge.export.sources.source import load_source
from zotta_edge.files import check_writable, replacing
from zotta_edge.format import (
    Floats,
    Layer,
    ModelInfo,
    Order,
    Precision,
    Preprocessing,
    Recipe,
    Trial,
    to_metadata,
)
from zotta_edge.runtime.engine.fold import fix_affines
from zotta_edge.runtime.engine.pooling import pool_in_place
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.sessions import open_session

Say = Callable[[str], None]


@dataclass(frozen=True)
class ExportOptions:
    """What the flags of `zotta-edge export` say.

    Parameters
    ----------
    precision
        "int8", "fp8" or "fp32".
    target
        CPU that will run the model: "avx2", "vnni", "arm64", or "auto" for this one.
    weights
        Checkpoint for a source that is an architecture or a function.
    random_weights
        Seeded weights instead.
    data
        Images for the checks, for recipes that look at activations, and to find out how the source
        wants its images where nobody says so.
    image_labels
        The classes of those images in a CSV; None: what lies with them.
    labels
        Names of the classes in order; empty if they have none.
    layers
        Regular expression that groups norms into layers by their names.
    size
        Height and width of the input, where the source leaves them open.
    inputs
        Values of inputs besides the image; one number fills an input of any shape.
    fold
        Fold BatchNorms into the convolutions before them, and adapt as where there are none.
    scores
        False: the output is no class scores, although it looks like them, as an embedding does.
    resize, interpolation, mean, std, order
        How images are prepared; None: as the source says. Mean and std are red's, green's and
        blue's, whatever the order "RGB" or "BGR" of the network's channels.
    """

    precision: Precision = "int8"
    target: str = "auto"
    weights: Path | None = None
    random_weights: bool = False
    data: str | None = None
    image_labels: Path | None = None
    labels: tuple[str, ...] = ()
    layers: str | None = None
    size: tuple[int, int] | None = None
    inputs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    fold: bool = False
    scores: bool = True
    resize: int | None = None
    interpolation: Literal["bicubic", "bilinear", "area"] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    order: Order | None = None


def export_model(
    source: str,
    output: str | Path,
    options: ExportOptions | None = None,
    say: Say = lambda message: None,
) -> ModelInfo:
    """Export a classifier into one adaptable file.

    Parameters
    ----------
    source
        An .onnx file, the name of an architecture, `package.module:factory` or `timm:NAME`.
    output
        File to write; it is replaced only after every check has passed.
    options
        Precision, target CPU, preprocessing and the like.
    say
        Told what is being done, and warnings.

    Returns
    -------
    ModelInfo
        What the file says about itself.

    Raises
    ------
    ZottaError
        If the source is no classifier, or a check fails.

    >>> options = ExportOptions(random_weights=True)
    >>> info = export_model("digits_resnet_gn", "digits.onnx", options)
    >>> info.classes, info.recipe.precision, info.checks["cosine"] > 0.98
    (10, 'int8', True)
    """
    options = options or ExportOptions()
    if options.precision == "int4":
        raise ZottaError("4 bits are for decoders whose weights come so: choose int8, fp8 or fp32")
    output = Path(output)
    check_writable(output)
    with one_line_errors(source):
        model, info = _build(source, options, say)
    write_model(model, info, output)
    return info


def _build(source: str, options: ExportOptions, say: Say) -> tuple[onnx.ModelProto, ModelInfo]:
    """The checked model and its description."""
    say(f"reading {source}")
    loaded = load_source(
        source,
        weights=options.weights,
        random_weights=options.random_weights,
        size=options.size,
    )
    bind_inputs(loaded.model, options.inputs)
    original, adaptable = loaded.model.SerializeToString(), loaded.model
    if options.fold:
        say(f"{fold_batch_norms(adaptable)} BatchNorms are folded into convolutions")
    batch_norms = any(node.op_type == "BatchNormalization" for node in adaptable.graph.node)
    found = found_scheme(adaptable.graph.node)
    if found:
        _keep_integers(found, options.precision, say)
    say("exposing the norms")
    classifier = as_classifier(adaptable, options.size, say, options.scores)
    layers = add_features(classifier, expose_norms(classifier, say, options.layers), options.layers)
    names = _labels(options.labels, classifier.classes)
    session = open_session(adaptable.SerializeToString())
    preprocessing, trial, images = _prepared(
        options, loaded.preprocessing, classifier, names, session, say
    )
    info = ModelInfo(
        preprocessing=preprocessing,
        layers=layers,
        recipe=Recipe(
            found_precision(adaptable.graph.node),
            found or "none",
            resolve_target(options.target),
            describe_machine(),
        ),
        affines=_affines(adaptable, layers),
        classes=classifier.classes,
        labels=names,
        trial=trial,
        outputs=classifier.outputs,
    )
    inputs = check_images(info.preprocessing, images)
    say("checking the adaptable graph against its source")
    if dead := dead_affines(session, info, inputs):
        info = without_dead(classifier.graph, info, dead, say)
        session = open_session(adaptable.SerializeToString())
    tolerance = HALF_TOLERANCE if classifier.half else SOURCE_TOLERANCE
    tolerance = FOUND_TOLERANCE if found else tolerance
    before = open_session(original)
    checks = check_adaptable(before, session, info, inputs, tolerance)
    if batch_norms or any(norm.inserted for norm in info.norms):
        fixed = onnx.ModelProto()
        fixed.CopyFrom(adaptable)
        fix_affines(fixed, info.norms)
        pool_in_place(fixed, info)
        ratio = relative_time(before, open_session(fixed.SerializeToString()), inputs)
        say(f"without adaptation it takes {ratio:.2f} times as long as the file as it came")
    if found or options.precision == "fp32":
        return adaptable, replace(info, checks=checks)
    say(f"quantizing to {options.precision}")
    model, scheme = _quantize(classifier, options.precision, info.recipe.target, images)
    recipe = replace(info.recipe, precision=options.precision, scheme=scheme)
    info = replace(info, recipe=recipe)
    say("checking the quantized graph against fp32")
    checks |= check_quantized(session, open_session(model.SerializeToString()), info, inputs)
    return model, replace(info, checks=checks)


def _keep_integers(found: str, precision: Precision, say: Say) -> None:
    if precision != "int8":
        raise ZottaError(
            f"the model is already quantized ({found}): leave --precision out to keep it as it is, "
            "or export the fp32 model"
        )
    say(f"the model is already quantized ({found}): its integers are kept")


def _quantize(
    classifier: Classifier, precision: Precision, target: str, images: Floats | None
) -> tuple[onnx.ModelProto, str]:
    model = classifier.graph.model
    if precision == "int8":
        return quantize_int8(model, resolve_target(target), classifier.shapes)
    return quantize_fp8(model, images)


def _affines(model: onnx.ModelProto, layers: tuple[Layer, ...]) -> dict[str, Floats]:
    """The source value of every overridable input, in the order of the layers."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    return {
        name: numpy_helper.to_array(stored[name])
        for layer in layers
        for norm in layer.norms
        for name in (norm.scale, norm.shift)
    }


def write_model(model: onnx.ModelProto, info: ModelInfo, output: Path) -> None:
    """Write `model` with `info` as its metadata."""
    onnx.helper.set_model_props(model, to_metadata(info))
    model.producer_name = "zotta-edge"
    content = model.SerializeToString()
    with replacing(output) as temporary:
        temporary.write_bytes(content)


def _prepared(
    options: ExportOptions,
    known: Preprocessing | None,
    classifier: Classifier,
    names: tuple[str, ...],
    session: Any,
    say: Say,
) -> tuple[Preprocessing, Trial | None, Floats | None]:
    """How images are prepared, how that was found out, and those of --data prepared so."""
    keys = ("mean", "std", "order", "resize", "interpolation")
    p = stated(known, classifier, **{key: getattr(options, key) for key in keys})
    classes = Classes(classifier.classes, names)
    data = sampled(options.data, options.image_labels, classes, p, say) if options.data else None
    p, trial = (
        found_by_trial(p, data, session, say, bool(classifier.outputs)) if p.assumed else (p, None)
    )
    return p, trial, prepare(data.images, p) if data else None


def _labels(labels: tuple[str, ...], classes: int) -> tuple[str, ...]:
    if labels and len(labels) != classes:
        raise ZottaError(f"--classes names {len(labels)} classes, the model has {classes}")
    return labels
