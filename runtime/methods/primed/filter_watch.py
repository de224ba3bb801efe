"""Notice that a filter has more or less to do than when it was chosen."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.settings import FilterSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.drift import RunningMean

_TINY = 1e-12  # no image is changed so little: keeps the logarithm finite


class FilterWatch:
    """log |f(x) - x|^2 now, against its first `drift_window` images.

    The drift is measured after the filter and cannot tell clean images through a median from noisy
    ones, so the filter itself is watched.
    """

    def __init__(self, settings: FilterSettings) -> None:
        self._settings = settings
        self._first, self._now = (RunningMean(settings.drift_window, 2) for _ in range(2))

    def reset(self) -> None:
        self._first.reset()
        self._now.reset()

    def as_at_first(self, images: Floats, filtered: Floats) -> bool:
        """Whether the filter changes these images as much as the first ones."""
        pairs = zip(images, filtered, strict=True)
        change = np.log([np.square(before - after).mean() + _TINY for before, after in pairs])
        rows = np.stack([change, np.square(change)], axis=1)
        self._now.add(rows)
        if self._first.samples < self._first.window:
            self._first.add(rows)
            return True
        (mean, square), noise = self._first.mean, self._first.variance + self._now.variance
        sampling = self._settings.drift_threshold * noise * max(square - mean**2, 0.0)
        allowed = max(sampling, self._settings.filter_change**2)
        return bool((self._now.mean[0] - mean) ** 2 <= allowed)

    def state(self) -> dict[str, NDArray[Any]]:
        return states.states_of({"first": self._first, "now": self._now})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all({"first": self._first, "now": self._now}, state)
