"""Which method serves a network: what each regains of the clean answers on degraded images."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.calibrate import Report, Settings, store
from zotta_edge.calibration.degradations import DEGRADATIONS, degraded
from zotta_edge.calibration.moments import source_moments
from zotta_edge.calibration.samples import Source, read_samples
from zotta_edge.progress import Progress
from zotta_edge.runtime.adaptive import AdaptiveModel
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.methods.bn_adapt.batch_statistics import has_batch_norms

IMAGES = 64  # of each degradation
BATCH = 16


def is_plain_cnn(report: Report) -> bool:
    """Whether the network has BatchNorms, or none: moments are then worth more than priming."""
    inserted = all(norm.inserted for norm in report.info.norms)
    return inserted or has_batch_norms(report.model)


def compare_methods(report: Report, source: Source, settings: Settings) -> Report:
    """Measure the channel moments, and what they and a primed file's own method regain.

    No labels are needed: an answer is right if it is the one that the clean image gets.
    """
    info = report.info
    samples = read_samples(
        source, info.preprocessing, settings.samples, settings.seed, strict=settings.strict
    )
    images = samples.prepared(info.preprocessing)
    moments = source_moments(report.model, info, images, settings.threads)
    measured = replace(report, info=replace(info, moments=moments))
    if info.outputs:  # no class scores: nothing tells which way regains more
        return measured
    methods = [*(["primed"] if info.prime else []), "moments"]
    gains = _gains(measured, samples.images[:IMAGES], methods, settings)
    return replace(report, info=replace(info, moments=replace(moments, gains=gains)))


def _gains(
    report: Report, images: Image, methods: Sequence[str], settings: Settings
) -> dict[str, float]:
    """Share of answers regained by each method, in points, less those without adaptation."""
    streams = _streams(images, settings.seed)
    total = len(images) * (len(methods) + 1) * len(streams)
    with (
        tempfile.TemporaryDirectory(prefix="zotta-") as folder,
        Progress("comparing methods", total) as progress,
    ):
        path = store(report, Path(folder) / "model.onnx")
        clean = _answers(AdaptiveModel.load(path, method="none", threads=settings.threads), images)
        shares: dict[str, float] = {}
        for method in ("none", *methods):
            model = AdaptiveModel.load(path, method=method, threads=settings.threads)
            same = []
            for stream in streams:
                model.reset()
                same.append(float((_answers(model, stream) == clean).mean()))
                progress.advance(len(images))
            shares[method] = 100 * float(np.mean(same))
    return {method: round(shares[method] - shares["none"], 2) for method in methods}


def _streams(images: Image, seed: int) -> list[Image]:
    """The images degraded in each way, and in all ways by turns."""
    streams = [degraded(images, name, seed) for name in DEGRADATIONS]
    turns = [streams[place % len(streams)][place] for place in range(len(images))]
    return [*streams, np.stack(turns)]


def _answers(model: AdaptiveModel, images: Image) -> NDArray[np.intp]:
    batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    labels: NDArray[np.intp] = np.concatenate([model.predict(batch).labels for batch in batches])
    return labels
