"""Which method serves a network: what each regains of the clean answers on degraded images."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.calibrate import Report, Settings, store
from zotta_edge.calibration.degradations import DEGRADATIONS, degraded
from zotta_edge.calibration.moments import source_moments
from zotta_edge.calibration.samples import Source, read_samples
from zotta_edge.format.moments import SourceMoments
from zotta_edge.progress import Progress
from zotta_edge.runtime.adaptive import AdaptiveModel
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.methods.bn_adapt.batch_statistics import has_batch_norms

IMAGES = 64  # of each degradation
BATCH = 16
SHARES = (0.25, 0.5)  # of a drift that each site may take back: networks differ (docs/moments.md)


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
    prepared = samples.prepared(info.preprocessing)
    moments = source_moments(report.model, info, prepared, settings.threads)
    measured = replace(report, info=replace(info, moments=moments))
    if info.outputs:  # no class scores: nothing tells which way regains more
        return measured
    images = samples.images[:IMAGES]
    streams = _streams(images, settings.seed)
    primed = ["primed"] if info.prime else []
    total = len(images) * len(streams) * (1 + len(primed) + len(SHARES))
    with Progress("comparing methods", total) as progress:
        known = _Known(images, streams, settings.threads, progress)
        gains = {method: known.gain(measured, method) for method in primed}
        ways = [replace(moments, share=share) for share in SHARES]
        regained = [known.gain(_with(report, way), "moments") for way in ways]
    best = int(np.argmax(regained))
    gains["moments"] = regained[best]
    return _with(report, replace(ways[best], gains=gains))


def _with(report: Report, moments: SourceMoments) -> Report:
    return replace(report, info=replace(report.info, moments=moments))


class _Known:
    """Degraded images and the answers that clean ones get; counts what a method regains."""

    def __init__(
        self, images: Image, streams: list[Image], threads: int | None, progress: Progress
    ) -> None:
        self._images, self._streams, self._threads = images, streams, threads
        self._progress, self._without = progress, -1.0

    def gain(self, report: Report, method: str) -> float:
        """Share of answers regained, in points, less those without adaptation."""
        with tempfile.TemporaryDirectory(prefix="zotta-") as folder:
            path = store(report, Path(folder) / "model.onnx")
            plain = AdaptiveModel.load(path, method="none", threads=self._threads)
            clean = _answers(plain, self._images)
            if self._without < 0:
                self._without = self._share(plain, clean)
            model = AdaptiveModel.load(path, method=method, threads=self._threads)
            return round(self._share(model, clean) - self._without, 2)

    def _share(self, model: AdaptiveModel, clean: NDArray[np.intp]) -> float:
        same = []
        for stream in self._streams:
            model.reset()
            same.append(float((_answers(model, stream) == clean).mean()))
            self._progress.advance(len(self._images))
        return 100 * float(np.mean(same))


def _streams(images: Image, seed: int) -> list[Image]:
    """The images degraded in each way, and in all ways by turns."""
    streams = [degraded(images, name, seed) for name in DEGRADATIONS]
    turns = [streams[place % len(streams)][place] for place in range(len(images))]
    return [*streams, np.stack(turns)]


def _answers(model: AdaptiveModel, images: Image) -> NDArray[np.intp]:
    batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    labels: NDArray[np.intp] = np.concatenate([model.predict(batch).labels for batch in batches])
    return labels
