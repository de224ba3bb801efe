"""Learn how far the model's certainty can be believed: on source images, spoilt in many ways.

Two logistic curves are fitted, of one answer and of a stream; each kind and strength of degradation
is a stream. `runtime/watch/reliability.py` says from what.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.calibrate import Report, Settings
from zotta_edge.calibration.samples import Samples, Source, read_samples
from zotta_edge.calibration.spoiling import DEGRADATIONS, degrade
from zotta_edge.format import Floats, Reliability
from zotta_edge.progress import Progress
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.watch.reliability import Summary, log_odds, logistic, share_right
from zotta_edge.runtime.watch.statistics import Doubles

IMAGES = 24  # of a stream
STRENGTHS = (0.4, 0.9)  # of each kind of degradation
RIDGE = 10.0  # in units of images; 1 and 30 did as well on both development models
LEAST_ERROR = 0.03  # that is owned up to: the kinds of drift that were tried are not all
_ROUNDS = 25  # of Newton's method
_LONGEST = 5.0  # step of it: where every answer is right, the curve has no end


@dataclass(frozen=True)
class Stream:
    """The answers to images that were spoilt in one way."""

    kind: str  # "" for clean images
    logits: Floats
    right: NDArray[np.bool_]
    summary: Doubles  # s


def assess(report: Report, source: Source, settings: Settings) -> Report:
    """Measure the reliability of the calibrated model, for estimates of its accuracy."""
    info = report.info
    if info.outputs:  # no class scores: nothing is right or wrong
        return report
    samples = read_samples(
        source, info.preprocessing, settings.samples, settings.seed, strict=settings.strict
    )
    engine = Engine.open(report.model, chosen=(), threads=settings.threads)
    labels = samples.numbers(Classes.of(info))
    streams = list(_streams(engine, report, samples, labels, settings.seed))
    known = fitted(streams, labelled=labels is not None)
    return replace(report, info=replace(info, reliability=known))


def fitted(streams: list[Stream], labelled: bool) -> Reliability:
    """Both curves, and how far the second errs on kinds of degradation it was not fitted on."""
    right = np.concatenate([stream.right for stream in streams])
    odds = np.concatenate([log_odds(stream.logits) for stream in streams])
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


def _streams(
    engine: Engine,
    report: Report,
    samples: Samples,
    labels: NDArray[np.int64] | None,
    seed: int,
) -> Iterator[Stream]:
    """Clean images first; without labels their answers are the right ones."""
    rng, size = np.random.default_rng(seed), min(IMAGES, len(samples))
    total = len(samples) + len(DEGRADATIONS) * len(STRENGTHS) * size
    with Progress("assessing", total) as progress:
        clean = _answers(engine, samples.images)
        truth = clean.logits.argmax(axis=1) if labels is None else labels
        yield _stream("", clean, truth, report)
        progress.advance(len(samples))
        for kind in DEGRADATIONS:
            for strength in STRENGTHS:
                drawn = rng.choice(len(samples), size, replace=False)
                spoilt = [degrade(samples.images[i], [kind], [strength], int(i)) for i in drawn]
                yield _stream(kind, _answers(engine, np.stack(spoilt)), truth[drawn], report)
                progress.advance(size)


def _stream(kind: str, outputs: Outputs, truth: NDArray[np.int64], report: Report) -> Stream:
    known = truth >= 0
    summary = Summary(report.calibration, report.info.classes)
    summary.add(outputs.logits, outputs.features)
    logits = outputs.logits[known]
    return Stream(kind, logits, logits.argmax(axis=1) == truth[known], summary.values())


def _answers(engine: Engine, images: NDArray[np.uint8]) -> Outputs:
    """In parts: memory stays that of a small batch."""
    preprocessing = engine.info.preprocessing
    parts = [
        engine.cone(engine.stem(prepare(part, preprocessing)), {})
        for part in np.array_split(images, -(-len(images) // IMAGES))
    ]
    features = zip(*(part.features for part in parts), strict=True)
    return Outputs(
        np.concatenate([part.logits for part in parts]),
        tuple(np.concatenate(layer) for layer in features),
        np.concatenate([part.embedding for part in parts]),
    )
