"""How far a stream's features are off the source's, less what its samples and content explain."""

from collections.abc import Callable, Mapping
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
        self._variance, self._mix = variance, mix
        self._starts = np.concatenate([[0], ends[:-1]])
        self._layers = [slice(*span) for span in zip(self._starts, ends, strict=True)]
        self._least = max(settings.drift_minimum, 2)  # one has no spread
        self._running = RunningMean(settings.window, len(variance))
        self._lengths = RunningMean(settings.window, len(ends))

    def reset(self) -> None:
        self._running.reset()
        self._lengths.reset()

    def add(self, offsets: Floats, weights: Doubles) -> None:
        lengths = np.add.reduceat(np.square(offsets), self._starts, axis=1)
        self._running.add(offsets, weights)
        self._lengths.add(lengths, weights)

    def significant(self) -> Doubles:
        """The mean, each layer's shrunk by the share of it that samples and content explain."""
        if self._running.weight < self._least:  # a few scenes are no world
            return np.zeros_like(self._variance)
        noise, lengths = self._mix.noise(self._running), self._lengths.mean
        parts = [self._shrunk(*each, noise) for each in zip(self._layers, lengths, strict=True)]
        return np.concatenate(parts)

    def _shrunk(self, layer: slice, length: float, noise: Callable[[float], float]) -> Doubles:
        mean, variance = self._running.mean[layer], self._variance[layer]
        spread = (length - float(mean @ mean)) / (1 - self._running.variance)
        missing = min(max(1 - spread / float(variance.sum()), 0.0), 1.0)
        return shrunk(mean, noise(missing) * variance)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._running.state() | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._running.restore(state)
        states.restore_all(self._parts(), state)

    def _parts(self) -> dict[str, states.Stateful]:
        """Format 1 did not have them: such a state learns the spread from its next images."""
        return {states.row("spread", "lengths"): self._lengths}
