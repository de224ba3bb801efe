"""Never worse than doing nothing: what the guards have in common, a switch and their counts.

The guards themselves are `trust_region`, `rollback` and `collapse`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.options import Options, option
from zotta_edge.runtime.events import (
    Collapsed,
    DistanceBounded,
    Event,
    Events,
    Returned,
    RolledBack,
    StepShortened,
)

KINDS = tuple(
    event.kind for event in (StepShortened, DistanceBounded, RolledBack, Collapsed, Returned)
)


@dataclass(frozen=True)
class GuardSettings(Options):
    guard: bool = option(True, "bound, roll back and reset updates that do harm")


class GuardCounts:
    """How often each guard had to act, counted from the events; a reset keeps the counts."""

    def __init__(self, events: Events) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        events.subscribe(self._count)

    def _count(self, event: Event) -> None:
        if event.kind in self._counts:
            self._counts[event.kind] += 1

    def reset(self) -> None: ...

    def to_dict(self) -> dict[str, int]:
        return dict(self._counts)

    def state(self) -> dict[str, NDArray[Any]]:
        return {kind: np.array([count]) for kind, count in self._counts.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._counts = Counter({kind: int(state[kind][0]) for kind in KINDS})
