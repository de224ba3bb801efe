"""How far an update may go: in one step, and from the source."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.events import DistanceBounded, Events, StepShortened
from zotta_edge.runtime.watch.guard import GuardSettings


@dataclass(frozen=True)
class TrustSettings(GuardSettings):
    max_step: float = option(
        0.05,
        "longest update, as a share of |theta_S| times sqrt(k batch / d); per-sample 4 times that",
        low=0,
    )
    max_distance: float = option(
        2.0,
        "furthest from the source, as a share of |theta_S| times sqrt(k / d); per-sample 4 times "
        "that",
        low=0,
    )
    trusted_batch: int = option(
        16, "batch whose cosine counts at every batch size: updates of small ones add up", low=1
    )


class Distance:
    """|theta - theta_S| / |theta_S|, and the bound on it."""

    def __init__(self, source: Floats, settings: GuardSettings, events: Events) -> None:
        self._source, self._settings, self._events = source, settings, events
        self._norm = float(np.linalg.norm(source)) or 1.0  # 0 in a forged file alone

    def __call__(self, theta: Floats) -> float:
        return float(np.linalg.norm(theta - self._source)) / self._norm

    def bounded(self, theta: Floats, furthest: float) -> Floats:
        """`theta`, at most `furthest` from the source."""
        return self.within(self._source, theta, furthest, DistanceBounded)

    def within(
        self, centre: Floats, theta: Floats, radius: float, event: type[StepShortened]
    ) -> Floats:
        """`theta`, or the point towards it that is `radius` away from the centre."""
        offset = theta - centre
        relative = float(np.linalg.norm(offset)) / self._norm
        if not self._settings.guard or relative <= radius:
            return theta
        self._events.report(event(relative, radius))
        if not math.isfinite(relative):
            return centre
        return centre + np.float32(radius / relative) * offset


class TrustRegion:
    """Bounds for estimated updates, which are mostly noise that adds up.

    Both limits scale with the cosine that an estimate should have with the gradient. The step also
    scales with sqrt(batch), for larger batches make fewer updates, and with the trust that
    rollbacks take away and give back.
    """

    def __init__(self, distance: Distance, cosine: float, settings: TrustSettings) -> None:
        self._distance, self._cosine, self._settings = distance, cosine, settings
        self.reset()

    def reset(self) -> None:
        self._trust = 1.0  # share of the longest step

    def bounded(self, theta: Floats, proposed: Floats, batch: int) -> Floats:
        """The proposed theta, no further from `theta` and from the source than is trusted."""
        step = self._settings.max_step * self._cosine * math.sqrt(batch) * self._trust
        proposed = self._distance.within(theta, proposed, step, StepShortened)
        return self._distance.bounded(proposed, self._settings.max_distance * self._cosine)

    def scale(self, factor: float) -> None:
        """Change the longest step; it never exceeds its setting."""
        self._trust = min(1.0, self._trust * factor)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"trust": np.array([self._trust])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._trust = float(state["trust"][0])
