"""The model file: what an adaptable ONNX file says about itself.

Everything stands in `metadata_props`, under keys that start with `zotta.`, so that ONNX Runtime
alone can read it (`session.get_modelmeta().custom_metadata_map`). Small things are JSON; arrays are
base64 of little-endian numbers.
"""

import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.packing import coded, coded_bytes, decode, decode_bytes, encode, matrix
from zotta_edge.signatures import Signatures, signatures_from_metadata, signatures_to_metadata
from zotta_edge.source_moments import (
    SourceMoments,
    moments_from_metadata,
    moments_to_metadata,
)
from zotta_edge.tensor_layouts import LAYOUTS
from zotta_edge.tensor_layouts import Kind as Kind

FORMAT_VERSION = 1
IMAGE = "image"  # the input
LOGITS = "logits"  # the output; features follow it
EMBEDDING = "embedding"  # what the classifier head reads, [batch, D]

Floats = NDArray[np.float32]
Precision = Literal["int4", "int8", "fp8", "fp32"]  # int4: only as it came
Interpolation = Literal["bicubic", "bilinear", "area"]
Layout = Literal["NCHW", "NHWC"]
Order = Literal["RGB", "BGR"]

_CERTAIN = 0.8  # share of resampled images that must agree on a preprocessing
_LARGEST = 10**6  # image side, number of classes or of calibration images


@dataclass(frozen=True)
class Preprocessing:
    """From an RGB uint8 image to the network's input: resize, centre crop, (x / 255 - mean) / std.

    An image that already has the input's size is neither resized nor cropped. `mean` and `std` are
    in the order of the network's channels.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int | None = None  # shorter side before the crop; None: straight to height x width
    interpolation: Interpolation = "bilinear"
    layout: Layout = "NCHW"
    assumed: bool = False  # nobody said so, and no trial could tell
    order: Order = "RGB"  # of the network's channels

    @property
    def channels(self) -> int:
        return len(self.mean)  # 1: a grey model


@dataclass(frozen=True)
class Norm:
    """One normalization whose scale and shift are inputs of the graph."""

    name: str
    channels: int
    kind: Kind
    inserted: bool = False  # the source has no norm here: scale 1, shift 0

    @property
    def scale(self) -> str:
        return f"{self.name}.scale"

    @property
    def shift(self) -> str:
        return f"{self.name}.shift"

    @property
    def shape(self) -> tuple[int, ...]:
        """One affine for the whole batch; the first axis may also be the batch."""
        return LAYOUTS[self.kind].affine_shape(self.channels)

    @property
    def parameters(self) -> int:
        return 2 * self.channels


@dataclass(frozen=True)
class Layer:
    """A transformer block or a residual stage: its norms, and the tensor that leaves it."""

    name: str
    feature: str  # output of the graph: the pooled feature, [batch, channels]
    tensor: str  # the tensor inside the graph that `feature` is the mean of
    kind: Kind
    channels: int
    norms: tuple[Norm, ...]

    @property
    def parameters(self) -> int:
        return sum(norm.parameters for norm in self.norms)


@dataclass(frozen=True)
class Recipe:
    """How the weights and activations were quantized, and for which machine."""

    precision: Precision
    scheme: str  # one line for a person: "dynamic per-channel S8, 7-bit weights"
    target: str  # avx2, vnni, arm64
    machine: str  # CPU on which the checks below were made


@dataclass(frozen=True)
class Calibration:
    """The source domain as the quantized model sees it, and the layers chosen from it."""

    mean: tuple[Floats, ...]  # mu_l^S, one vector a layer
    std: tuple[Floats, ...]  # sigma_l^S
    embedding_mean: Floats  # of what the classifier head reads
    embedding_std: Floats
    chosen: tuple[int, ...]  # indices into `layers`
    purity: tuple[float, ...]  # P_l; empty when the layers were given or chosen by another rule
    samples: int  # N images behind the statistics
    rule: str
    tau: float
    seed: int
    source: str  # fingerprint of the source images
    ood: str  # fingerprint of the OOD images, or how they were made
    seconds: float
    pixels: tuple[float, float] | None = None  # mean and spread of a source image, from 0 to 1


@dataclass(frozen=True)
class Prime:
    """J = dv / dtheta of the chosen layers' shifts, as a product of two thin matrices."""

    features: Floats  # [D, rank], the channels of all layers from the first chosen one on
    shifts: Floats  # [d, rank]; J = features shifts^T
    layers: tuple[int, ...]  # whose shifts theta is
    images: int  # that J is a mean over
    perturbation: float  # c of the differences
    energy: float  # share of |J|^2 that the rank keeps
    mirrored: float  # share of source images that the model calls the same seen in a mirror
    seconds: float


@dataclass(frozen=True)
class Tried:
    """What a network made of images that were prepared in one way."""

    name: str  # "imagenet", "half BGR"
    images: int
    information: float  # of the answers about the images, in nats
    accuracy: float | None  # where labels are known


@dataclass(frozen=True)
class Trial:
    """How the preprocessing was found, where nobody gave it."""

    tried: tuple[Tried, ...]  # the chosen one first
    certainty: float  # share of resampled images on which the first is better than the second

    @property
    def certain(self) -> bool:
        return self.certainty >= _CERTAIN


@dataclass(frozen=True)
class Reliability:
    """How far the model's certainty says that it is right, learned on degraded source images."""

    image: tuple[float, float]  # a, b: P(right) of an answer = logistic(a log-odds + b)
    stream: tuple[float, ...]  # w, b: of a whole stream = logistic(w s + b), s its summary
    error: float  # of a stream's estimate, RMS over kinds of degradation left out of the fit
    labelled: bool  # right by the labels of the source images; else: as on the clean image
    streams: int  # behind the fit


@dataclass(frozen=True)
class ModelInfo:
    """All that an adaptable model file says about itself."""

    preprocessing: Preprocessing
    layers: tuple[Layer, ...]
    recipe: Recipe
    affines: Mapping[str, Floats]  # input name -> source value, in its declared shape
    classes: int
    checks: Mapping[str, float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    calibration: Calibration | None = None
    prime: Prime | None = None
    trial: Trial | None = None
    moments: SourceMoments | None = None
    signatures: Signatures | None = None
    reliability: Reliability | None = None
    # Of a network without class scores: its own outputs, and their axes behind the batch's. Its
    # `classes` is 1.
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[str, ...]:
        """The outputs of the graph that are for the user."""
        return tuple(self.outputs) or (LOGITS,)

    @property
    def norms(self) -> tuple[Norm, ...]:
        return tuple(norm for layer in self.layers for norm in layer.norms)

    @property
    def chosen(self) -> tuple[int, ...]:
        return self.calibration.chosen if self.calibration else ()

    def with_calibration(self, calibration: Calibration | None) -> "ModelInfo":
        """A prime belongs to the layers that were chosen, and goes with them, as all else does."""
        bare = replace(self, calibration=calibration, prime=None, signatures=None, moments=None)
        return replace(bare, reliability=None)


def to_metadata(info: ModelInfo) -> dict[str, str]:
    """`metadata_props` of a model file; the reverse of `from_metadata`."""
    flat = np.concatenate([np.ravel(info.affines[name]) for name in _affine_names(info.layers)])
    entries: dict[str, Any] = {
        "zotta.format": FORMAT_VERSION,
        "zotta.preprocessing": _preprocessing(info.preprocessing),
        "zotta.layers": [_without_defaults(layer) for layer in info.layers],
        "zotta.recipe": asdict(info.recipe),
        "zotta.classes": info.classes,
        "zotta.checks": dict(info.checks),
        "zotta.labels": list(info.labels),
    }
    metadata = {key: json.dumps(value, separators=(",", ":")) for key, value in entries.items()}
    metadata["zotta.affines"] = encode(flat)
    if info.outputs:
        metadata["zotta.outputs"] = json.dumps(dict(info.outputs), separators=(",", ":"))
    if info.trial:
        metadata["zotta.trial"] = json.dumps(asdict(info.trial), separators=(",", ":"))
    if info.calibration:
        metadata |= _calibration_to_metadata(info.calibration)
    if info.prime:
        metadata |= _prime_to_metadata(info.prime)
    if info.moments:
        metadata |= moments_to_metadata(info.moments)
    if info.signatures:
        metadata |= signatures_to_metadata(info.signatures)
    if info.reliability:
        metadata["zotta.reliability"] = json.dumps(asdict(info.reliability), separators=(",", ":"))
    return metadata


def from_metadata(metadata: Mapping[str, str], path: object = "the file") -> ModelInfo:
    """Read `metadata_props`; refuse, with a reason, what this version does not understand."""
    if "zotta.format" not in metadata:
        raise ZottaError(
            f"{path} was not made by zotta-edge: make an adaptable file with "
            f"`zotta-edge export {path} -o adaptable.onnx` and `zotta-edge calibrate "
            "adaptable.onnx --source DIR --prime`"
        )
    if metadata.get("zotta.kind", "classifier") != "classifier":
        raise ZottaError(
            f"{path} is a {metadata['zotta.kind']}'s file, not a classifier's: decoders answer "
            "with `zotta-edge generate --model FILE --prompt TEXT`"
        )
    if metadata["zotta.format"] != str(FORMAT_VERSION):
        raise ZottaError(
            f"{path} has format {metadata['zotta.format']}, this version reads {FORMAT_VERSION}: "
            "export it again, or install the matching zotta-edge"
        )
    try:
        info = _parse(metadata)
        _check(info)
    except _DAMAGED as error:
        detail = " ".join(str(error).split())[:200]
        raise ZottaError(
            f"{path} is damaged ({type(error).__name__}: {detail}): export it again"
        ) from error
    return info


_DAMAGED = (
    *(KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError),
    binascii.Error,
)


def _check(info: ModelInfo) -> None:
    """Refuse values of the right kind that no model has."""
    p, calibration = info.preprocessing, info.calibration
    sizes = (p.height, p.width, info.classes, *([] if p.resize is None else [p.resize]))
    sizes += (calibration.samples,) if calibration else ()
    if any(type(size) is not int or not 0 < size <= _LARGEST for size in sizes):
        raise ValueError(f"sizes {sizes}")
    if len(p.std) != len(p.mean) or not min(p.std) > 0:
        raise ValueError(f"a standard deviation of {p.std}")
    kinds = (p.layout, Layout), (p.interpolation, Interpolation), (p.order, Order)
    if any(value not in get_args(known) for value, known in kinds):
        raise ValueError(f"layout {p.layout}, interpolation {p.interpolation}, order {p.order}")
    if len(info.labels) not in (0, info.classes) or not all(
        type(label) is str for label in info.labels
    ):
        raise ValueError(f"{len(info.labels)} labels for {info.classes} classes")
    arrays: list[NDArray[Any]] = [np.array([p.mean, p.std]), *info.affines.values()]
    if calibration:
        arrays += [*calibration.mean, *calibration.std]
        arrays += [calibration.embedding_mean, calibration.embedding_std]
    if info.prime:
        arrays += [info.prime.features, info.prime.shifts]
    if info.signatures:
        arrays += info.signatures.arrays
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("numbers that are not finite")


def _parse(metadata: Mapping[str, str]) -> ModelInfo:
    def entry(key: str) -> Any:
        return json.loads(metadata[f"zotta.{key}"])

    layers = tuple(_layer(item) for item in entry("layers"))
    preprocessing = entry("preprocessing")
    preprocessing |= {key: tuple(preprocessing[key]) for key in ("mean", "std")}
    return ModelInfo(
        preprocessing=Preprocessing(**preprocessing),
        layers=layers,
        recipe=Recipe(**entry("recipe")),
        affines=_split_affines(layers, decode(metadata["zotta.affines"])),
        classes=int(entry("classes")),
        checks=entry("checks"),
        labels=tuple(entry("labels")),
        calibration=_calibration(metadata, layers) if "zotta.embedding" in metadata else None,
        prime=_prime(metadata, layers) if "zotta.prime" in metadata else None,
        trial=_trial(entry("trial")) if "zotta.trial" in metadata else None,
        moments=moments_from_metadata(metadata),
        signatures=signatures_from_metadata(metadata),
        reliability=_reliability(metadata, layers),
        outputs=_outputs(entry("outputs")) if "zotta.outputs" in metadata else {},
    )


def _preprocessing(p: Preprocessing) -> dict[str, Any]:
    """Earlier versions know no `order`: a file that does not need it stays readable to them."""
    item = asdict(p)
    if p.order == "RGB":
        del item["order"]
    return item


def _outputs(item: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(map(int, axes)) for name, axes in item.items()}


def _trial(item: dict[str, Any]) -> Trial:
    return Trial(tuple(Tried(**each) for each in item["tried"]), float(item["certainty"]))


def _without_defaults(layer: Layer) -> dict[str, Any]:
    """Earlier versions know no `inserted`: a file that does not need it stays readable to them."""
    item = asdict(layer)
    for norm in item["norms"]:
        if not norm["inserted"]:
            del norm["inserted"]
    return item


def _layer(item: dict[str, Any]) -> Layer:
    return Layer(**(item | {"norms": tuple(Norm(**norm) for norm in item["norms"])}))


def _affine_names(layers: tuple[Layer, ...]) -> list[str]:
    return [name for layer in layers for norm in layer.norms for name in (norm.scale, norm.shift)]


def _split_affines(layers: tuple[Layer, ...], flat: Floats) -> dict[str, Floats]:
    norms = [norm for layer in layers for norm in layer.norms for _ in range(2)]
    ends = np.cumsum([norm.channels for norm in norms])
    if len(flat) != (ends[-1] if norms else 0):
        raise ValueError(f"{len(flat)} affine values for {len(norms) // 2} norms")
    parts = np.split(flat, ends[:-1])
    names = _affine_names(layers)
    return {
        name: part.reshape(norm.shape) for name, norm, part in zip(names, norms, parts, strict=True)
    }


STATISTICS = ("mean", "std", "embedding_mean", "embedding_std")


def _calibration_to_metadata(calibration: Calibration) -> dict[str, str]:
    plain = {key: value for key, value in vars(calibration).items() if key not in STATISTICS}
    embedding = [calibration.embedding_mean, calibration.embedding_std]
    return {
        "zotta.calibration": json.dumps(plain, separators=(",", ":")),
        "zotta.statistics": encode(np.concatenate([*calibration.mean, *calibration.std])),
        "zotta.embedding": encode(np.concatenate(embedding)),
    }


def _calibration(metadata: Mapping[str, str], layers: tuple[Layer, ...]) -> Calibration:
    plain = json.loads(metadata["zotta.calibration"])
    pixels = plain.pop("pixels", None)
    flat = decode(metadata["zotta.statistics"])
    channels = [layer.channels for layer in layers]
    if len(flat) != 2 * sum(channels):
        raise ValueError(f"{len(flat)} statistics for {2 * sum(channels)} channels")
    if any(not 0 <= index < len(layers) for index in plain["chosen"]):
        raise ValueError(f"chosen layers {plain['chosen']} of {len(layers)}")
    parts = np.split(flat, np.cumsum(channels * 2)[:-1])
    embedding = decode(metadata["zotta.embedding"]).reshape(2, -1)
    return Calibration(
        mean=tuple(parts[: len(layers)]),
        std=tuple(parts[len(layers) :]),
        embedding_mean=embedding[0],
        embedding_std=embedding[1],
        chosen=tuple(plain.pop("chosen")),
        purity=tuple(plain.pop("purity")),
        pixels=None if pixels is None else (float(pixels[0]), float(pixels[1])),
        **plain,
    )


_MATRICES = ("features", "shifts")


def _prime_to_metadata(prime: Prime) -> dict[str, str]:
    plain = {key: value for key, value in vars(prime).items() if key not in _MATRICES}
    both = np.concatenate([coded(prime.features), coded(prime.shifts)])
    return {
        "zotta.prime": json.dumps(plain, separators=(",", ":")),
        "zotta.jacobian": encode(both, "i1"),
    }


def _prime(metadata: Mapping[str, str], layers: tuple[Layer, ...]) -> Prime:
    plain = json.loads(metadata["zotta.prime"])
    chosen = tuple(plain.pop("layers"))
    if any(not 0 <= index < len(layers) for index in chosen):
        raise ValueError(f"primed layers {list(chosen)} of {len(layers)}")
    channels = sum(layer.channels for layer in layers[min(chosen) :])
    shifts = sum(layers[index].parameters for index in chosen) // 2
    stored = decode_bytes(metadata["zotta.jacobian"])
    rank, rest = divmod(len(stored), coded_bytes(channels, 1) + coded_bytes(shifts, 1))
    if rest or not rank:
        raise ValueError(f"{len(stored)} bytes of Jacobian for {channels} x {shifts}")
    left, right = np.split(stored, [coded_bytes(channels, rank)])
    return Prime(matrix(left, rank), matrix(right, rank), layers=chosen, **plain)


def _reliability(metadata: Mapping[str, str], layers: tuple[Layer, ...]) -> Reliability | None:
    if "zotta.reliability" not in metadata:
        return None
    item = json.loads(metadata["zotta.reliability"])
    (slope, offset), stream = map(float, item["image"]), tuple(map(float, item["stream"]))
    known = Reliability(**(item | {"image": (slope, offset), "stream": stream}))
    if len(stream) != len(layers) + 3 or not np.isfinite([slope, offset, *stream]).all():
        raise ValueError(f"a reliability of {len(stream)} numbers")
    if not 0 <= known.error <= 1:
        raise ValueError(f"a reliability to {known.error}")
    return known
