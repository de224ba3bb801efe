"""Never worse than doing nothing: bounds, rollback and reset, each counted and logged."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.statistics import entropies
from zotta_edge.runtime.zeroth.estimator import estimator_of

log = logging.getLogger(__name__)

EVENTS = ("shortened", "bounded", "rollback", "collapse", "returned")
_LEVELS = {"collapse": logging.WARNING, "rollback": logging.INFO, "returned": logging.INFO}
_WINDOW = 64  # samples behind the running class shares and entropy
_BATCH = 16  # whose cosine is taken for batches of any size: the updates of small ones add up
_RECOVERY = 1.1  # growth of the trusted step after an update that held


class Guard:
    """Watches each update of theta and each batch of predictions.

    `shortened` and `bounded` count updates that would have gone too far in one step or from the
    source, `rollback` updates that raised the objective, `collapse` resets because one class took
    over while entropy fell, `returned` resets because the stream was like the source again.
    """

    def __init__(self, settings: Settings, source: Floats, classes: int) -> None:
        self._settings, self._source = settings, source
        self._norm = float(np.linalg.norm(source))
        self._cosine = estimator_of(settings).cosine(len(source), _BATCH)
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))
        self._classes = classes
        self.reset()

    def reset(self) -> None:
        """Forget the stream; the counts stay."""
        self._trust = 1.0  # share of the longest step
        self._shares = np.full(self._classes, 1 / self._classes)  # running share of each class
        self._entropy = self._calm = math.nan  # running, and as it was without adaptation

    def count(self, event: str, reason: str) -> None:
        self.events[event] += 1
        log.log(_LEVELS.get(event, logging.DEBUG), "%s: %s", event, reason)

    def distance(self, theta: Floats) -> float:
        """|theta - theta_S| / |theta_S|."""
        return float(np.linalg.norm(theta - self._source)) / self._norm

    def bounded(self, theta: Floats, proposed: Floats, batch: int) -> Floats:
        """The proposed step, no longer than trusted, ending no further from the source than the
        bound.

        An estimate is mostly noise, which adds up over the updates; both limits scale with the
        cosine that it should have with the gradient. The step also scales with sqrt(batch): larger
        batches make fewer updates.
        """
        if not self._settings.guard:
            return proposed
        step = self._settings.max_step * self._cosine * math.sqrt(batch) * self._trust
        proposed = self._within(theta, proposed, step, "shortened")
        furthest = self._settings.max_distance * self._cosine
        return self._within(self._source, proposed, furthest, "bounded")

    def no_further(self, proposed: Floats, furthest: float) -> Floats:
        """The proposed theta, at most this share of |theta_S| from the source."""
        if not self._settings.guard:
            return proposed
        return self._within(self._source, proposed, furthest, "bounded")

    def _within(self, centre: Floats, theta: Floats, radius: float, event: str) -> Floats:
        offset = theta - centre
        relative = float(np.linalg.norm(offset)) / self._norm
        if relative <= radius:
            return theta
        if not math.isfinite(relative):
            self.count(event, "the update is not finite")
            return centre
        self.count(event, f"{relative:.3f} of the source's norm to {radius:.3f}")
        return centre + np.float32(radius / relative) * offset

    def accepts(self, before: float, after: float) -> bool:
        """Whether an update may stand: the objective of the same samples before and after it."""
        if not self._settings.guard or after <= before + abs(before) * self._settings.tolerance:
            self._trust = min(1.0, self._trust * _RECOVERY)
            return True
        self._trust *= self._settings.backoff
        self.count("rollback", f"objective {before:.4g} -> {after:.4g}")
        return False

    def collapsed(self, logits: Floats, at_source: bool, ask_source: Callable[[], Floats]) -> bool:
        """Whether a batch's answers show a collapse; only a suspicion costs the source's pass."""
        self.observe(logits, at_source)
        suspect = None if at_source else self.suspect()
        return suspect is not None and self.convicts(suspect, ask_source())

    def observe(self, logits: Floats, at_source: bool) -> None:
        """Take in a batch of answers; at the source parameters they say what calm looks like."""
        share = min(len(logits) / _WINDOW, 1.0)
        counts = np.bincount(logits.argmax(axis=1), minlength=self._classes)
        self._shares = self._shares + share * (counts / len(logits) - self._shares)
        entropy = float(entropies(logits).mean())
        known = not math.isnan(self._entropy)
        self._entropy = self._entropy + share * (entropy - self._entropy) if known else entropy
        if at_source or math.isnan(self._calm):
            self._calm = self._entropy

    def suspect(self) -> int | None:
        """The class that has taken over while entropy fell, if one has."""
        suspect = int(self._shares.argmax())
        fallen = self._entropy <= self._settings.collapse_entropy * self._calm
        taken_over = self._shares[suspect] >= self._settings.collapse_share
        return suspect if self._settings.guard and fallen and taken_over else None

    def convicts(self, suspect: int, source_logits: Floats) -> bool:
        """Whether the source parameters, asked about the same batch, mostly say otherwise.

        A camera that looks at one thing for long is no collapse; it is not asked about again
        before the running shares have filled anew.
        """
        self._shares = np.full(self._classes, 1 / self._classes)
        agreeing = float((source_logits.argmax(axis=1) == suspect).mean())
        if agreeing >= 0.5:
            return False
        self.count("collapse", f"class {suspect} took over, the source sees it in {agreeing:.0%}")
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "shares": self._shares,
            "numbers": np.array([self._trust, self._entropy, self._calm]),
            "events": np.array([self.events[event] for event in EVENTS]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._trust, self._entropy, self._calm = state["numbers"].tolist()
        self._shares = state["shares"]
        self.events = Counter(dict(zip(EVENTS, state["events"].tolist(), strict=True)))
