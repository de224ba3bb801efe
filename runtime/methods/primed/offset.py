"""How far a stream's features are off the source's, less what its samples and content explain."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.class_mix import ClassMix
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.state import fields as states
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
        self._least = max(settings.drift_minimum, 2)  # one has no spread
        self._running = RunningMean(settings.window, len(variance))
        self._lengths = RunningMean(settings.window, len(ends))

    def reset(self) -> None:
        self._running.reset()
        self._lengths.reset()

    def add(self, offsets: Floats, weights: Doubles) -> None:
        starts = np.r_[0, self._ends[:-1]]
        lengths = np.add.reduceat(np.square(offsets), starts, axis=1)
        self._running.add(offsets, weights)
        self._lengths.add(lengths, weights)

    def significant(self) -> Doubles:
        """The mean, each layer's shrunk by the share of it that samples and content explain."""
        if self._running.weight < self._least:  # a few scenes are no world
            return np.zeros_like(self._variance)
        inner = self._ends[:-1]
        means, variances = np.split(self._running.mean, inner), np.split(self._variance, inner)
        parts = zip(means, variances, self._lengths.mean, strict=True)
        return np.concatenate([self._shrunk(*part) for part in parts])

    def _shrunk(self, mean: Doubles, variance: Doubles, length: float) -> Doubles:
        spread = (length - float(mean @ mean)) / (1 - self._running.variance)
        missing = float(np.clip(1 - spread / variance.sum(), 0, 1))
        return shrunk(mean, self._mix.noise(self._running, missing) * variance)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._running.state() | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._running.restore(state)
        states.restore_all(self._parts(), state)

    def _parts(self) -> dict[str, states.Stateful]:
        """Format 1 did not have them: such a state learns the spread from its next images."""
        return {states.row("spread", "lengths"): self._lengths}
