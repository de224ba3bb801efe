"""Notice that one class has taken over all answers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.events import Collapsed, Events
from zotta_edge.runtime.watch.guard import GuardSettings
from zotta_edge.runtime.watch.statistics import entropies


@dataclass(frozen=True)
class CollapseSettings(GuardSettings):
    collapse_share: float = option(
        0.8, "of the answers in one class, with entropy fallen: collapse", low=0, high=1
    )
    collapse_entropy: float = option(
        0.5, "of the entropy without adaptation, below which it counts as fallen", low=0
    )
    collapse_window: int = option(
        64, "samples behind the running shares of the classes and the entropy", low=1
    )


class Collapse:
    """Watches the answers: running shares of the classes and the mean entropy.

    One class that dominates while entropy has fallen is a suspicion; it is confirmed when the
    source parameters see something else in most of the same batch.
    """

    def __init__(self, classes: int, settings: CollapseSettings, events: Events) -> None:
        self._classes, self._settings, self._events = classes, settings, events
        self.reset()

    def reset(self) -> None:
        self._shares = np.full(self._classes, 1 / self._classes)
        self._entropy = self._calm = math.nan  # running, and as it was without adaptation

    def happened(self, logits: Floats, at_source: bool, ask_source: Callable[[], Floats]) -> bool:
        """Whether a batch's answers show a collapse; only a suspicion costs the source's pass."""
        self.observe(logits, at_source)
        suspect = None if at_source else self.suspect()
        return suspect is not None and self.confirms(suspect, ask_source())

    def observe(self, logits: Floats, at_source: bool) -> None:
        """Take in a batch of answers; those of the source parameters show the usual entropy."""
        share = min(len(logits) / self._settings.collapse_window, 1.0)
        counts = np.bincount(logits.argmax(axis=1), minlength=self._classes)
        self._shares = self._shares + share * (counts / len(logits) - self._shares)
        entropy = float(entropies(logits).mean())
        known = not math.isnan(self._entropy)
        self._entropy = self._entropy + share * (entropy - self._entropy) if known else entropy
        if at_source or math.isnan(self._calm):
            self._calm = self._entropy

    def suspect(self) -> int | None:
        """The class that dominates while entropy has fallen, if one does."""
        suspect = int(self._shares.argmax())
        fallen = self._entropy <= self._settings.collapse_entropy * self._calm
        taken_over = self._shares[suspect] >= self._settings.collapse_share
        several = self._classes > 1  # a network without class scores has one
        return suspect if several and self._settings.guard and fallen and taken_over else None

    def confirms(self, suspect: int, source_logits: Floats) -> bool:
        """Whether the source parameters mostly answer the same batch with other classes.

        A camera that looks at one thing for long is no collapse; it is not asked about again
        before the running shares have filled anew.
        """
        self._shares = np.full(self._classes, 1 / self._classes)
        agreeing = float((source_logits.argmax(axis=1) == suspect).mean())
        if agreeing >= 0.5:
            return False
        self._events.report(Collapsed(suspect, agreeing))
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "shares": self._shares,
            "entropy": np.array([self._entropy]),
            "calm": np.array([self._calm]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._shares = state["shares"]
        self._entropy, self._calm = float(state["entropy"][0]), float(state["calm"][0])
