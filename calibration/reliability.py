"""Learn how far the model's certainty can be believed: on source images, spoilt in many ways.

Two logistic curves are fitted, of one answer and of a stream; each kind and strength of degradation
is a stream, answered as the file is and, where it is primed, once more as it adapts: by adapting,
answers get surer than they get better. `runtime/watch/reliability.py` says from what.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.calibrate import Report, Settings, store
from zotta_edge.calibration.samples import Samples, Source, read_samples
from zotta_edge.calibration.spoiling import DEGRADATIONS, degrade
from zotta_edge.format import Calibration, Floats, ModelInfo, Reliability
from zotta_edge.progress import Progress
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.methods.registry import chosen_layers, find
from zotta_edge.runtime.methods.remembering import opened
from zotta_edge.runtime.settings import Settings as AdaptationSettings
from zotta_edge.runtime.watch.reliability import Summary, log_odds, logistic, share_right
from zotta_edge.runtime.watch.statistics import Doubles

IMAGES, BATCH = 24, 8  # of a stream, and of a batch of it
STRENGTHS = (0.4, 0.9)  # of each kind of degradation
RIDGE = 10.0  # in units of images; 1 and 30 did as well on both development models
LEAST_ERROR = 0.03  # that is owned up to: the kinds of drift that were tried are not all
_ROUNDS = 25  # of Newton's method
_LONGEST = 5.0  # step of it: where every answer is right, the curve has no end


@dataclass(frozen=True)
class Stream:
    """The answers to images that were spoilt in one way."""

    kind: str  # "" for clean images
    adapted: bool
    logits: Floats
    right: NDArray[np.bool_]
    summary: Doubles  # s


def assess(report: Report, source: Source, settings: Settings) -> Report:
    """Measure the reliability of the calibrated model, for estimates of its accuracy."""
    if report.info.outputs:  # no class scores: nothing is right or wrong
        return report
    with tempfile.TemporaryDirectory(prefix="zotta-") as folder:
        model = store(report, Path(folder) / "model.onnx")
        known = reliability(model, report.info, report.calibration, source, settings)
    return replace(report, info=replace(report.info, reliability=known))


def reliability(
    model: Path, info: ModelInfo, calibration: Calibration, source: Source, settings: Settings
) -> Reliability:
    """Both curves of a calibrated model, from images of its source."""
    samples = read_samples(
        source, info.preprocessing, settings.samples, settings.seed, strict=settings.strict
    )
    labels = samples.numbers(Classes.of(info))
    ways = {False: _Answers(model, "none", settings.threads)}
    if info.prime:
        ways[True] = _Answers(model, "primed", settings.threads)
    streams = list(_streams(ways, calibration, samples, labels, settings.seed))
    return fitted(streams, labelled=labels is not None)


def fitted(streams: list[Stream], labelled: bool) -> Reliability:
    """Both curves, and how far the second errs on kinds of degradation it was not fitted on."""
    plain = [stream for stream in streams if not stream.adapted]
    right = np.concatenate([stream.right for stream in plain])
    odds = np.concatenate([log_odds(stream.logits) for stream in plain])
    slope, offset = curve(odds[:, None], right.astype(np.float64), np.ones(len(right)))
    return Reliability(
        image=(slope, offset),
        stream=_stream_curve(streams),
        error=round(_error_left_out(streams), 4),
        labelled=labelled,
        streams=len(streams),
    )


def curve(x: Doubles, right: Doubles, images: Doubles) -> tuple[float, ...]:
    """Weights and offset of P(right | x), by penalized maximum likelihood (Newton's method).

    Parameters
    ----------
    x
        [rows, entries]; penalized in units of their spread.
    right
        The share of right answers of each row.
    images
        How many answers each row stands for.

    >>> x = np.array([[-1.0], [1.0]])
    >>> weight, offset = curve(x, np.array([0.5, 0.9]), np.array([1e6, 1e6]))
    >>> round(weight, 2), round(offset, 2)
    (1.1, 1.1)
    """
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    design = np.c_[(x - mean) / spread, np.ones(len(x))]
    ridge, parameters = np.diag([RIDGE] * x.shape[1] + [1e-3]), np.zeros(x.shape[1] + 1)
    for _ in range(_ROUNDS):
        p = logistic(design @ parameters)
        slope = design.T @ (images * (right - p)) - ridge @ parameters
        bend = (design * (images * p * (1 - p))[:, None]).T @ design + ridge
        parameters = parameters + np.clip(np.linalg.solve(bend, slope), -_LONGEST, _LONGEST)
    weights = parameters[:-1] / spread
    return (*map(float, weights), float(parameters[-1] - mean @ weights))


def _stream_curve(streams: list[Stream]) -> tuple[float, ...]:
    """A long stream counts no more than the others: it is one kind of drift among many."""
    shares = np.array([stream.right.mean() for stream in streams])
    images = np.array([float(min(len(stream.right), IMAGES)) for stream in streams])
    return curve(np.stack([stream.summary for stream in streams]), shares, images)


def _error_left_out(streams: list[Stream]) -> float:
    """RMS error of the estimates of each kind's streams without it, less what sampling explains."""
    squares = []
    for kind in sorted({stream.kind for stream in streams}):
        known = _stream_curve([stream for stream in streams if stream.kind != kind])
        for stream in (stream for stream in streams if stream.kind == kind):
            estimate = share_right(known, stream.summary)
            sampling = estimate * (1 - estimate) / len(stream.right)
            squares.append((float(stream.right.mean()) - estimate) ** 2 - sampling)
    return math.sqrt(max(float(np.mean(squares)), LEAST_ERROR**2))


class _Answers:
    """Logits and features of a stream, by a method that starts from the source."""

    def __init__(self, model: Path, name: str, threads: int | None) -> None:
        kind, settings = find(name), AdaptationSettings(class_memory="off")
        layers = chosen_layers(kind, settings, lambda: read_info(model))
        self._engine = Engine.open(model, chosen=layers, threads=threads)
        self._method = opened(name, self._engine, settings, Events())

    def __call__(self, images: NDArray[np.uint8]) -> tuple[Floats, tuple[Floats, ...]]:
        self._method.reset()
        preprocessing = self._engine.info.preprocessing
        answers = [
            self._method.predict(prepare(images[first : first + BATCH], preprocessing))
            for first in range(0, len(images), BATCH)
        ]
        features = zip(*(answer.features for answer in answers), strict=True)
        return (
            np.concatenate([answer.logits for answer in answers]),
            tuple(np.concatenate(layer) for layer in features),
        )


def _streams(
    ways: Mapping[bool, _Answers],
    calibration: Calibration,
    samples: Samples,
    labels: NDArray[np.int64] | None,
    seed: int,
) -> Iterator[Stream]:
    """Clean images first; without labels their answers are the right ones."""
    rng, size = np.random.default_rng(seed), min(IMAGES, len(samples))
    total = len(ways) * (len(samples) + len(DEGRADATIONS) * len(STRENGTHS) * size)
    with Progress("assessing", total) as progress:
        clean, _ = ways[False](samples.images)
        truth = clean.argmax(axis=1) if labels is None else labels

        def streams(
            kind: str, images: NDArray[np.uint8], right: NDArray[np.int64]
        ) -> Iterator[Stream]:
            for adapted, way in ways.items():
                yield _stream(kind, adapted, way(images), right, calibration)
                progress.advance(len(images))

        yield from streams("", samples.images, truth)
        for kind in DEGRADATIONS:
            for strength in STRENGTHS:
                drawn = rng.choice(len(samples), size, replace=False)
                spoilt = [degrade(samples.images[i], [kind], [strength], int(i)) for i in drawn]
                yield from streams(kind, np.stack(spoilt), truth[drawn])


def _stream(
    kind: str,
    adapted: bool,
    answers: tuple[Floats, tuple[Floats, ...]],
    truth: NDArray[np.int64],
    calibration: Calibration,
) -> Stream:
    known, (logits, features) = truth >= 0, answers
    summary = Summary(calibration, logits.shape[1])
    summary.add(logits, features)
    logits = logits[known]
    return Stream(kind, adapted, logits, logits.argmax(axis=1) == truth[known], summary.values())
