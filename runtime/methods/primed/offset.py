"""How far a stream's features are off the source's, less what its samples and content explain."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.class_mix import ClassMix
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.watch.drift import RunningMean
from zotta_edge.runtime.watch.statistics import Doubles, shrunk


class Offset:
    """A running mean of layers side by side, and of each layer's squared length for its spread.

    Parameters
    ----------
    variance
        sigma_S^2 of every channel, [D].
    ends
        Where each layer ends in D.
    """

    def __init__(
        self, variance: Doubles, ends: NDArray[np.intp], mix: ClassMix, settings: PrimedSettings
    ) -> None:
        self._variance, self._ends, self._mix = variance, ends, mix
        self._least = settings.drift_minimum
        self._running = RunningMean(settings.window, len(variance) + len(ends))

    def reset(self) -> None:
        self._running.reset()

    def add(self, offsets: Floats, weights: Doubles) -> None:
        starts = np.r_[0, self._ends[:-1]]
        lengths = np.add.reduceat(np.square(offsets), starts, axis=1)
        self._running.add(np.c_[offsets, lengths], weights)

    def significant(self) -> Doubles:
        """The mean, each layer's shrunk by the share of it that samples and content explain."""
        *layers, lengths = np.split(self._running.mean, self._ends)
        if self._running.weight < self._least:  # a few scenes are no world
            return np.zeros_like(self._variance)
        variances = np.split(self._variance, self._ends[:-1])
        parts = zip(layers, variances, lengths, strict=True)
        return np.concatenate([self._shrunk(*part) for part in parts])

    def _shrunk(self, mean: Doubles, variance: Doubles, length: float) -> Doubles:
        spread = (length - float(mean @ mean)) / max(1 - self._running.variance, 1e-6)
        missing = min(max(0.0, 1 - spread / float(variance.sum())), 1.0)
        return shrunk(mean, self._mix.noise(self._running, missing) * variance)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._running.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._running.restore(state)
