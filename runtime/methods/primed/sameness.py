"""Whether the images of a stream ask for the same filter, and what they ask for together.

One image's measures tell what it needs with the noise that its content adds; a mean over images of
one world does not have it. Images of many worlds have no mean worth the name. The variance of what
they ask for tells: in one world it is what calibration saw within one kind of degradation.

    b = (n - 1) / (n - 1 + 8) min(1, spread / var g)^4,      g_i <- g_i + b (mean g - g_i)
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.signature import best_filters
from zotta_edge.runtime.watch.drift import RunningMean


class Common(NamedTuple):
    """What the images of a stream ask for together, and how far that holds for each, 0 to 1."""

    gains: Floats  # [F]
    share: float  # b
    reach: float = np.inf  # squared distance from the mean, up to which an image is one of them
    tried: int | None = None  # the filter that a trial found for all of them, counted from 1

    def chosen(self, gains: Floats, margin: float) -> NDArray[np.intp]:
        """The filter of each image, counted from 1: its own choice where it is unlike the rest."""
        own = best_filters(gains, margin)
        pooled = gains + np.float32(self.share) * (self.gains - gains)
        common = best_filters(pooled, margin) if self.tried is None else self.tried
        far = np.square(gains - self.gains).sum(axis=1) > self.reach
        return np.where(far, own, common)


class Sameness:
    """Running mean and variance of the filters' predicted gains.

    Parameters
    ----------
    spread
        Variance among images of one kind, summed over the filters.
    """

    def __init__(self, filters: int, spread: float, settings: PrimedSettings) -> None:
        self._spread, self._settings, self._filters = spread, settings, filters
        self._running = RunningMean(settings.drift_window, 2 * filters)

    def reset(self) -> None:
        self._running.reset()

    @property
    def images(self) -> int:
        return self._running.samples

    def observe(self, gains: Floats) -> None:
        self._running.add(np.concatenate([gains, np.square(gains)], axis=1))

    @property
    def common(self) -> Common:
        mean, square = np.split(self._running.mean, [self._filters])
        n, few = self._running.samples, self._settings.common_minimum
        if n < 2:
            return Common(mean.astype(np.float32), 0.0)
        variance = float(np.maximum(square - np.square(mean), 0).sum()) * n / (n - 1)
        alike = min(1.0, self._spread / max(variance, 1e-12)) ** self._settings.common_power
        reach = self._settings.common_reach * self._spread
        return Common(mean.astype(np.float32), (n - 1) / (n - 1 + few) * alike, reach)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._running.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._running.restore(state)
