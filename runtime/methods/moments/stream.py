"""What a stream is like before anything is aligned: drift, repeated frames, another stream."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.format.moments import SourceMoments
from zotta_edge.runtime.methods.moments.settings import MomentSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.drift import Drift
from zotta_edge.runtime.watch.novelty import Novelty
from zotta_edge.runtime.watch.statistics import Doubles, Source


class MomentStream:
    """Watches the first site's instance moments, which no alignment reaches."""

    def __init__(self, moments: SourceMoments, settings: MomentSettings) -> None:
        mean, std = (x.astype(np.float64) for x in (moments.first_mean, moments.first_std))
        source = Source(mean, std, moments.samples, np.array([len(mean)]))
        self.drift = Drift(source, (1,), settings)
        self._unit = np.maximum(std, 1e-6 * std.max(initial=1e-30))
        unit = Source(mean / self._unit, np.ones(len(mean)), moments.samples, source.ends)
        self._novelty = Novelty(unit, settings)
        self._window = settings.drift_window
        self.reset()

    def reset(self) -> None:
        self.unchanged = self._window  # images since the stream changed
        self.drift.reset()
        self._novelty.reset()

    def weigh(self, first: Floats) -> Doubles:
        """How new each image is, 0 to 1."""
        scaled: Floats = (first / self._unit).astype(np.float32)
        return self._novelty.weigh([scaled])

    def changed(self, first: Floats, weights: Doubles) -> bool:
        """Take in a batch; whether it belongs to another stream."""
        self.drift.observe([first], weights)
        self.unchanged += len(first)
        if self.unchanged <= self._window:
            self.drift.remember()  # a small batch alone says little of what the stream is like
            return False
        return self.drift.changed

    def begin(self, first: Floats, weights: Doubles, known: int) -> None:
        """Compare with this batch from now on; `known` of its images are of the new stream."""
        self.drift.begin([first], weights)
        self.unchanged = known

    def state(self) -> dict[str, NDArray[Any]]:
        return {"unchanged": np.array([self.unchanged])} | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.unchanged = int(state["unchanged"][0])
        states.restore_all(self._parts(), state)

    def _parts(self) -> dict[str, states.Stateful]:
        return {"drift": self.drift, "novelty": self._novelty}
