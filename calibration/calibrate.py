"""The whole calibration: images -> source statistics and layers, inside the file."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from zotta_edge.calibration.metadata import replace_metadata
from zotta_edge.calibration.plausible import doubts
from zotta_edge.calibration.purity import layer_purities
from zotta_edge.calibration.samples import (
    MIN_SAMPLES,
    Samples,
    Source,
    check_drifted,
    read_samples,
)
from zotta_edge.calibration.scores import gradient_scores, influence_scores, parameter_scores
from zotta_edge.calibration.selection import Choice, Selection, by_purity, by_score
from zotta_edge.calibration.statistics import pixel_statistics, source_statistics
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.format import Calibration, Floats, ModelInfo, to_metadata
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.preprocessing import as_batch

SAMPLES = 256  # as many as are usual: fewer make all of calibration shorter
CORRUPTION, SEVERITY = "speckle_noise", 3  # put on the source images when no others are given


@dataclass(frozen=True)
class Settings:
    """What the flags of `zotta-edge calibrate` say."""

    choice: Choice = field(default_factory=Choice)
    samples: int = SAMPLES  # N images of the source, and as many OOD ones
    seed: int = 0  # of the draw, the noise and the clustering
    strict: bool = False  # whether an image that cannot be read is an error
    threads: int | None = None  # None: all cores

    def __post_init__(self) -> None:
        if self.samples < MIN_SAMPLES:
            raise ZottaError(f"{self.samples} samples are too few: at least {MIN_SAMPLES}")
        if self.seed < 0:
            raise ZottaError(f"the seed is {self.seed}: expected 0 or more")

    def part_of(self, most: int) -> int:
        """So many of `most` as there are samples of the usual number.

        >>> Settings(samples=64).part_of(4), Settings(samples=500).part_of(4)
        (1, 4)
        """
        return max(1, most * min(self.samples, SAMPLES) // SAMPLES)


@dataclass(frozen=True)
class Report:
    """What calibration found. Nothing is written yet: `store` does that."""

    model: Path
    info: ModelInfo  # what the file will say
    calibration: Calibration
    selection: Selection
    notes: tuple[str, ...]  # what was skipped, missing or out of the ordinary


def calibrate(
    model: str | Path, source: Source, ood: Source | None = None, settings: Settings | None = None
) -> Report:
    """Measure the source domain on the very model that will run; choose the layers to adapt.

    >>> from zotta_edge.models import embedded
    >>> settings = Settings(choice=Choice(layers=(1, 2)))
    >>> report = calibrate(embedded.MODEL, embedded.digits(32), settings=settings)
    >>> report.info.chosen  # `store(report)` writes it into the file
    (1, 2)
    """
    settings = settings or Settings()
    started = time.perf_counter()
    info = read_info(model)
    settings.choice.check(len(info.layers))
    clean = _read(source, info, settings)
    drifted = _drifted(clean, ood, info, settings)
    images = clean.prepared(info.preprocessing)
    statistics = source_statistics(model, info, images, settings.threads)
    measured = Calibration(
        **vars(statistics),
        chosen=(),
        purity=(),
        samples=len(clean),
        rule="given" if settings.choice.layers else settings.choice.rule,
        tau=settings.choice.tau,
        seed=settings.seed,
        source=clean.fingerprint,
        ood=_origin(drifted, ood),
        seconds=0.0,
        pixels=pixel_statistics(clean.images),
    )
    selection = select_layers(
        model,
        images,
        drifted.prepared(info.preprocessing) if drifted else images,
        settings.choice,
        seed=settings.seed,
        threads=settings.threads,
        info=info.with_calibration(measured),
    )
    calibration = replace(
        measured,
        chosen=selection.chosen,
        purity=selection.scores if measured.rule == "purity" else (),
        seconds=round(time.perf_counter() - started, 3),
    )
    notes = doubts(model, info, clean, settings.threads)
    notes += [*_notes(clean, drifted, settings), *filter(None, [selection.note])]
    if ood is not None and drifted is None:
        notes.append("the OOD images were not looked at: this choice of layers needs none")
    done = info.with_calibration(calibration)
    return Report(Path(model), done, calibration, selection, tuple(notes))


def select_layers(
    model: str | Path,
    source: Image | Floats,
    drifted: Image | Floats,
    choice: Choice | None = None,
    *,
    seed: int = 0,
    threads: int | None = None,
    info: ModelInfo | None = None,
) -> Selection:
    """Choose layers from images of the two domains, uint8 or preprocessed.

    On the device, `drifted` are the first drifted batches; no torch is needed.
    """
    choice = choice or Choice()
    info = info or read_info(model)
    choice.check(len(info.layers))
    if choice.layers is not None:
        return Selection(tuple(sorted(set(choice.layers))))
    if choice.rule == "all":
        return Selection(tuple(i for i, layer in enumerate(info.layers) if layer.norms))
    if choice.rule == "parameters":
        return by_score(parameter_scores(info), info.layers, choice)
    away = as_batch(drifted, info.preprocessing)
    if choice.rule == "purity":
        home = as_batch(source, info.preprocessing)
        purities = layer_purities(model, info, home, away, seed, threads)
        chosen = by_purity(purities.values, info.layers, choice)
        return replace(chosen, seconds=purities.seconds)
    measure = gradient_scores if choice.rule == "gradient" else influence_scores
    return by_score(measure(model, info, away, seed, threads), info.layers, choice)


def store(report: Report, output: str | Path | None = None) -> Path:
    """Put the calibration into the file, or into a copy at `output`; the graph stays as it is."""
    target = Path(output or report.model)
    replace_metadata(report.model, target, to_metadata(report.info), prefix="zotta.")
    return target


def _read(where: Source, info: ModelInfo, settings: Settings) -> Samples:
    return read_samples(
        where, info.preprocessing, settings.samples, settings.seed, strict=settings.strict
    )


def _drifted(
    clean: Samples, ood: Source | None, info: ModelInfo, settings: Settings
) -> Samples | None:
    """The OOD images, where the rule looks at any."""
    if not settings.choice.compares:
        return None
    if ood is None:
        noisy = corrupt_batch(clean.images, CORRUPTION, SEVERITY, settings.seed)
        return Samples(np.asarray(noisy), clean.classes)
    drifted = _read(ood, info, settings)
    check_drifted(clean, drifted, ood)
    return drifted


def _origin(drifted: Samples | None, ood: Source | None) -> str:
    if drifted is None:
        return "none"
    return f"{CORRUPTION} severity {SEVERITY}" if ood is None else drifted.fingerprint


def _notes(clean: Samples, drifted: Samples | None, settings: Settings) -> list[str]:
    notes = [f"skipped: {error}" for error in clean.skipped]
    if len(clean) < settings.samples:
        notes.append(f"{len(clean)} source images instead of {settings.samples}")
    if drifted is not None:
        notes += [f"skipped: {error}" for error in drifted.skipped]
        if len(drifted) != len(clean):
            fewer = min(len(drifted), len(clean))
            notes.append(f"purity compares {fewer} with {fewer} images")
    return notes
