"""Undo an update that raised the objective of the samples it was made for."""

from dataclasses import dataclass

from zotta_edge.options import option
from zotta_edge.runtime.events import Events, RolledBack
from zotta_edge.runtime.watch.guard import GuardSettings
from zotta_edge.runtime.watch.trust_region import TrustRegion


@dataclass(frozen=True)
class RollbackSettings(GuardSettings):
    tolerance: float = option(
        0.01, "share by which an update may raise its own samples' objective: rounding does", low=0
    )
    backoff: float = option(0.5, "longest update after a rollback, relative", low=0, high=1)
    recovery: float = option(1.1, "growth of the longest update after one that held", low=1)


class Rollback:
    """Compares the objective of the same samples before and after an update."""

    def __init__(self, region: TrustRegion, settings: RollbackSettings, events: Events) -> None:
        self._region, self._settings, self._events = region, settings, events

    def accepts(self, before: float, after: float) -> bool:
        """Whether the update may stand; the trust region grows or shrinks with the answer."""
        settings = self._settings
        if not settings.guard or after <= before + abs(before) * settings.tolerance:
            self._region.scale(settings.recovery)
            return True
        self._region.scale(settings.backoff)
        self._events.report(RolledBack(before, after))
        return False
