"""How far the stream has moved away from the source, from features every pass computes anyway."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import NotFiniteError
from zotta_edge.format import Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.watch.statistics import Doubles, Source, floored


@dataclass(frozen=True)
class DriftSettings(Options):
    drift_threshold: float = option(
        10.0, "adapt when the stream is this many times further off than noise explains", low=1
    )
    drift_window: int = option(64, "samples behind the drift score", low=8)
    drift_minimum: int = option(
        8, "samples before which nothing counts as drift: one odd image is none", low=1
    )


class RunningMean:
    """The mean of about the last `window` samples, whatever the size of the batches.

    A plain mean until the window is full, then an exponential one: a batch of `window` or more
    replaces it, a batch of one moves it by 1 / window. A sample that repeats what was seen weighs
    less than one, but ages the others like any: what a stream no longer shows is forgotten.
    """

    def __init__(self, window: int, channels: int) -> None:
        self.window = window
        self.mean: Doubles = np.zeros(channels)
        self.samples = 0  # seen, at most `window`
        self.weight = 0.0  # of these, the samples that were new
        self.variance = 0.0  # of the mean, in units of one sample's variance

    def add(self, features: Floats, weights: Doubles | None = None) -> None:
        if not np.isfinite(features.mean(axis=0)).all():  # it would stay for good
            raise NotFiniteError("the features of these images are not finite")
        weights = np.ones(len(features)) if weights is None else weights
        new = float(weights.sum())
        self._age(len(features))
        self.weight += new
        if not new:
            return
        share, within = new / self.weight, weights / new
        self.mean = self.mean + share * (within @ features.astype(np.float64) - self.mean)
        self.variance = (1 - share) ** 2 * self.variance + share**2 * float(within @ within)

    def _age(self, batch: int) -> None:
        """Of the samples so far, those that a batch of this size pushes out of the window."""
        before, self.samples = self.samples, min(self.samples + batch, self.window)
        left = max(self.samples - batch, 0)
        self.weight = self.weight * left / before if before else 0.0

    def reset(self) -> None:
        self.mean, self.variance = np.zeros_like(self.mean), 0.0
        self.samples, self.weight = 0, 0.0

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "mean": self.mean,
            "samples": np.array([self.samples]),
            "weight": np.array([self.weight]),
            "variance": np.array([self.variance]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.mean = state["mean"]
        self.samples, self.variance = int(state["samples"][0]), float(state["variance"][0])
        self.weight = float(state["weight"][0])


class Drift:
    """Mean features of the stream against the source's, less what sampling noise explains.

    Only layers that theta cannot reach are watched (those before the first chosen one), so that
    the score speaks of the stream alone, not of what adaptation made of it. When there is none,
    all layers are.
    """

    def __init__(self, source: Source, chosen: tuple[int, ...], settings: DriftSettings) -> None:
        self.untouched_layers = min(chosen)
        watched = source.ends[self.untouched_layers - 1]  # [-1]: all
        self._source_mean, std = source.mean[:watched], source.std[:watched]
        self._std = floored(std)
        self._source_noise = 1 / source.samples
        self._settings = settings
        self._now = RunningMean(settings.drift_window, len(self._source_mean))
        self.reset()

    def reset(self) -> None:
        self._now.reset()
        self._reference, self._reference_noise = self._source_mean, self._source_noise

    def observe(self, features: Sequence[Floats], weights: Doubles | None = None) -> None:
        """Take in a batch's pooled features, [batch, channel] of each watched layer."""
        self._now.add(np.concatenate(features, axis=1), weights)

    @property
    def score(self) -> float:
        """Distance from the source in its own standard deviations, noise taken out."""
        noise = self._now.variance + self._source_noise
        distance = self._distance(self._source_mean) if self._now.samples else 0.0
        return float(np.sqrt(max(distance - noise, 0)))

    @property
    def significance(self) -> float:
        """Squared distance from the source over what noise alone would give: 1 without drift."""
        return self._significance(self._source_mean, self._source_noise)

    @property
    def significant(self) -> bool:
        return self.significance >= self._settings.drift_threshold

    @property
    def changed(self) -> bool:
        return self.change >= self._settings.drift_threshold

    @property
    def change(self) -> float:
        """The same against the stream as it was when `remember` was called."""
        return self._significance(self._reference, self._reference_noise)

    def remember(self) -> None:
        """From now on `change` compares with the stream as it is."""
        self._reference, self._reference_noise = self._now.mean, self._now.variance

    def begin(self, features: Sequence[Floats], weights: Doubles | None = None) -> None:
        """Another stream begins with this batch: forget the one before, and remember this."""
        self._now.reset()
        self.observe(features, weights)
        self.remember()

    def _significance(self, mean: Doubles, noise: float) -> float:
        if self._now.weight < self._settings.drift_minimum:
            return 0.0
        return self._distance(mean) / (self._now.variance + noise)

    def _distance(self, mean: Doubles) -> float:
        """Each channel in units of its own spread: a few loud ones would hide the others."""
        return float(np.square((self._now.mean - mean) / self._std).mean())

    def state(self) -> dict[str, NDArray[Any]]:
        reference = {
            "reference": self._reference,
            "reference_noise": np.array([self._reference_noise]),
        }
        return self._now.state() | reference

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._now.restore(state)
        self._reference = state["reference"]
        self._reference_noise = float(state["reference_noise"][0])
