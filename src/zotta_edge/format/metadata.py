"""To and from `metadata_props`: what all parts of a file say, and which files are refused."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from zotta_edge.errors import ZottaError
from zotta_edge.format.calibration import calibration_from_metadata, calibration_to_metadata
from zotta_edge.format.damage import refuse_eyes, refuse_other_version, refusing_damage
from zotta_edge.format.info import ModelInfo, Recipe
from zotta_edge.format.kinds import check_kinds, check_numbers
from zotta_edge.format.layers import (
    affines_from_text,
    affines_to_text,
    layer_from_item,
    layer_to_item,
)
from zotta_edge.format.moments import moments_from_metadata, moments_to_metadata
from zotta_edge.format.preprocessing import (
    preprocessing_from_item,
    preprocessing_to_item,
    trial_from_item,
)
from zotta_edge.format.prime import prime_from_metadata, prime_to_metadata
from zotta_edge.format.reliability import reliability_from_metadata, reliability_to_metadata
from zotta_edge.format.signatures import signatures_from_metadata, signatures_to_metadata

FORMAT_VERSION = 1

_LARGEST = 10**6  # image side, number of classes or of calibration images


def to_metadata(info: ModelInfo) -> dict[str, str]:
    """`metadata_props` of a model file; the reverse of `from_metadata`."""
    entries: dict[str, Any] = {
        "zotta.format": FORMAT_VERSION,
        "zotta.preprocessing": preprocessing_to_item(info.preprocessing),
        "zotta.layers": [layer_to_item(layer) for layer in info.layers],
        "zotta.recipe": asdict(info.recipe),
        "zotta.classes": info.classes,
        "zotta.checks": dict(info.checks),
        "zotta.labels": list(info.labels),
    }
    if info.outputs:
        entries["zotta.outputs"] = dict(info.outputs)
    if info.trial:
        entries["zotta.trial"] = asdict(info.trial)
    metadata = {key: json.dumps(value, separators=(",", ":")) for key, value in entries.items()}
    metadata["zotta.affines"] = affines_to_text(info.layers, info.affines)
    return metadata | _measured(info)


def _measured(info: ModelInfo) -> dict[str, str]:
    """What calibration adds."""
    return (
        (calibration_to_metadata(info.calibration) if info.calibration else {})
        | (prime_to_metadata(info.prime) if info.prime else {})
        | (moments_to_metadata(info.moments) if info.moments else {})
        | (signatures_to_metadata(info.signatures) if info.signatures else {})
        | (reliability_to_metadata(info.reliability) if info.reliability else {})
    )


def from_metadata(metadata: Mapping[str, str], path: object = "the file") -> ModelInfo:
    """Read `metadata_props`; refuse, with a reason, what this version does not understand."""
    _refuse_other_files(metadata, path)
    with refusing_damage(path):
        info = _parse(metadata)
        _check(info)
    return info


def _refuse_other_files(metadata: Mapping[str, str], path: object) -> None:
    if "zotta.format" not in metadata:
        raise ZottaError(
            f"{path} was not made by zotta-edge: make an adaptable file with "
            f"`zotta-edge export {path} -o adaptable.onnx` and `zotta-edge calibrate "
            "adaptable.onnx --source DIR --prime`"
        )
    refuse_eyes(metadata, path)
    if metadata.get("zotta.kind", "classifier") != "classifier":
        raise ZottaError(
            f"{path} is a {metadata['zotta.kind']}'s file, not a classifier's: decoders answer "
            "with `zotta-edge generate --model FILE --prompt TEXT`"
        )
    refuse_other_version(metadata["zotta.format"], FORMAT_VERSION, path)


def _parse(metadata: Mapping[str, str]) -> ModelInfo:
    def entry(key: str) -> Any:
        return json.loads(metadata[f"zotta.{key}"])

    layers = tuple(layer_from_item(item) for item in entry("layers"))
    outputs = entry("outputs") if "zotta.outputs" in metadata else {}
    return ModelInfo(
        preprocessing=preprocessing_from_item(entry("preprocessing")),
        layers=layers,
        recipe=Recipe(**entry("recipe")),
        affines=affines_from_text(layers, metadata["zotta.affines"]),
        classes=int(entry("classes")),
        checks=entry("checks"),
        labels=tuple(entry("labels")),
        calibration=calibration_from_metadata(metadata, layers),
        prime=prime_from_metadata(metadata, layers),
        trial=trial_from_item(entry("trial")) if "zotta.trial" in metadata else None,
        moments=moments_from_metadata(metadata),
        signatures=signatures_from_metadata(metadata),
        reliability=reliability_from_metadata(metadata, layers),
        outputs={name: tuple(map(int, axes)) for name, axes in outputs.items()},
    )


def _check(info: ModelInfo) -> None:
    """Refuse values of the right kind that no model has."""
    p, calibration = info.preprocessing, info.calibration
    tried = info.trial.tried if info.trial else ()
    parts = (calibration, info.prime, info.trial, info.moments, info.signatures, info.reliability)
    check_kinds(p, info.recipe, *info.layers, *info.norms, *filter(None, parts), *tried)
    check_numbers(info.checks)
    sizes = (p.height, p.width, info.classes, *([] if p.resize is None else [p.resize]))
    sizes += (calibration.samples,) if calibration else ()
    if any(type(size) is not int or not 0 < size <= _LARGEST for size in sizes):
        raise ValueError(f"sizes {sizes}")
    if len(info.labels) not in (0, info.classes) or not all(
        type(label) is str for label in info.labels
    ):
        raise ValueError(f"{len(info.labels)} labels for {info.classes} classes")
    "".join(info.labels).encode()  # halves of surrogate pairs are no names
