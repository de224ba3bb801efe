"""How new an image is: frames of a still scene are one sample, not five hundred."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.watch.statistics import Doubles, Source


@dataclass(frozen=True)
class NoveltySettings(Options):
    """Chosen on images under the extra corruptions (docs/primed.md, "Still scenes")."""

    repeat_below: float = option(
        0.025,
        "an image this close to one seen before repeats it: |v - v'|^2 over 2 sum sigma_S^2",
        low=0,
    )
    new_above: float = option(0.05, "an image further than this from all others is new", low=1e-6)
    remembered: int = option(32, "new images that others are compared with", low=1)


class Novelty:
    """Weights from 0, a repeated image, to 1, a new one.

    An image's features are compared with those of the last new ones, in units of how far two
    source images are apart. Features of layers that theta cannot reach stay the same when the
    image does.
    """

    def __init__(self, source: Source, settings: NoveltySettings) -> None:
        self._settings = settings
        self._unit = 2 * float(np.square(source.std).sum()) or 1.0  # a source of one image
        self._seen: Floats = np.zeros((settings.remembered, len(source.mean)), np.float32)
        self.reset()

    def reset(self) -> None:
        self._seen = np.zeros_like(self._seen)
        self._count = 0  # new ones so far; they take the rows in turn

    def weigh(self, features: Sequence[Floats]) -> Doubles:
        """Of a batch's pooled features, [batch, channel] of each layer; remembers the new ones."""
        return np.array([self._weight(row) for row in np.concatenate(features, axis=1)])

    def _weight(self, row: Floats) -> float:
        low, high = self._settings.repeat_below, self._settings.new_above
        seen = self._seen[: self._count]
        distance = np.square(seen - row).sum(axis=1).min(initial=np.inf) / self._unit
        weight = float(np.clip((distance - low) / max(high - low, 1e-6), 0, 1))
        if weight > 0.5:
            self._seen[self._count % len(self._seen)] = row
            self._count += 1
        return weight

    def state(self) -> dict[str, NDArray[Any]]:
        return {"seen": self._seen.copy(), "count": np.array([self._count])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._seen, self._count = state["seen"].copy(), int(state["count"][0])
