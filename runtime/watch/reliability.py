"""How often the model is right, without labels: from its answers and features, as calibrated.

Calibration saw the model on degraded source images, where it knows the right answers (or at least
those to the clean images), and fitted two logistic curves: P(right) of one answer from its log
odds, and the share of right answers of a whole stream from what its images have in common,

    s = [mean log odds, log(1 + C P(two images get the same answer)), mean log |v_l - mu_l|^2 ...]

(C classes; v_l in units of sigma_l, one entry a layer). Certainty alone is not enough: a network
that calls everything a frog does so with certainty, and a veil of low contrast takes certainty away
and leaves the answers right.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats, ModelInfo, Reliability
from zotta_edge.runtime.watch.statistics import Doubles, floored, log_softmax

WINDOW = 256  # images behind an estimate
LEAST = 16  # of them: two images' answers are alike or not, which says little
_INTERVAL = 1.64  # standard errors: nine streams in ten lie within
_ODDS = 8.0  # log odds beyond which certainty says no more


def log_odds(logits: Floats) -> Doubles:
    """log p / (1 - p) of each image's answer, within bounds, [batch].

    >>> log_odds(np.log(np.array([[0.8, 0.1, 0.1]], np.float32))).round(3)
    array([1.386])
    """
    top = np.exp(log_softmax(logits).max(axis=1), dtype=np.float64)
    odds: Doubles = np.log(top) - np.log(np.maximum(1 - top, math.exp(-_ODDS)))
    return odds


def logistic(x: Doubles) -> Doubles:
    value: Doubles = 1 / (1 + np.exp(-x))
    return value


def believed(reliability: Reliability, logits: Floats) -> Doubles:
    """P(right) of each answer, [batch]."""
    slope, offset = reliability.image
    return logistic(slope * log_odds(logits) + offset)


class Summary:
    """Running means over a stream's images, and s, which they add up to."""

    def __init__(self, calibration: Calibration, classes: int) -> None:
        self._mean, self._classes = calibration.mean, classes
        self._unit = [floored(std) for std in calibration.std]
        self.reset()

    def reset(self) -> None:
        self.images = 0.0
        # log odds, |p|^2, log distances of the layers, p
        self._means = np.zeros(2 + len(self._mean) + self._classes)

    def add(self, logits: Floats, features: Sequence[Floats]) -> None:
        """Take in a batch's answers and the pooled features of all layers."""
        probabilities = np.exp(log_softmax(logits), dtype=np.float64)
        alike = np.square(probabilities).sum(axis=1)
        distances = [
            np.log(np.square((layer - mean) / unit).mean(axis=1) + 1e-6)
            for layer, mean, unit in zip(features, self._mean, self._unit, strict=True)
        ]
        rows = np.column_stack([log_odds(logits), alike, *distances, probabilities])
        self.images = min(self.images + len(rows), float(max(WINDOW, len(rows))))
        self._means = self._means + len(rows) / self.images * (rows.mean(axis=0) - self._means)

    def values(self) -> Doubles:
        """s, [2 + layers]."""
        odds, alike, *rest = self._means[: 2 + len(self._mean)]
        mean, n = self._means[2 + len(self._mean) :], self.images
        pairs = max(0.0, (n * float(mean @ mean) - alike) / (n - 1))  # of two different images
        return np.array([odds, math.log1p(self._classes * pairs), *rest])

    def state(self) -> dict[str, NDArray[Any]]:
        return {"images": np.array([self.images]), "means": self._means}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.images, self._means = float(state["images"][0]), state["means"]


@dataclass(frozen=True)
class Estimate:
    """The share of right answers among the recent ones, and an interval that holds it in 90 %."""

    accuracy: float
    low: float
    high: float
    images: int
    labelled: bool = True  # False: right means as on the clean image

    def to_dict(self) -> dict[str, float]:
        return vars(self).copy()


class AccuracyEstimate:
    """A running estimate over the last images; none where calibration did not prepare for it.

    It takes the classes to be mixed as in the source: of few classes it says too little.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._reliability, self._summary = info.reliability, None
        if info.reliability and info.calibration:
            self._summary = Summary(info.calibration, info.classes)

    def reset(self) -> None:
        if self._summary:
            self._summary.reset()

    def observe(self, logits: Floats, features: Sequence[Floats]) -> None:
        """Take in a batch's answers; a method that has no features to show gives none."""
        if self._summary and features:
            self._summary.add(logits, features)

    def now(self) -> Estimate | None:
        known, summary = self._reliability, self._summary
        if known is None or summary is None or summary.images < LEAST:
            return None
        accuracy = share_right(known.stream, summary.values())
        sampling = accuracy * (1 - accuracy) / summary.images
        reach = _INTERVAL * math.sqrt(known.error**2 + sampling)
        low, high = max(0.0, accuracy - reach), min(1.0, accuracy + reach)
        return Estimate(accuracy, low, high, int(summary.images), known.labelled)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._summary.state() if self._summary else {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if self._summary:
            self._summary.restore(state)


def share_right(curve: Sequence[float], s: Doubles) -> float:
    """logistic(w s + b), for the curve [w, b].

    >>> share_right([2.0, 0.0, -1.0], np.array([0.5, 3.0]))
    0.5
    """
    return float(logistic(np.append(s, 1.0) @ np.asarray(curve)))
