"""Never worse than doing nothing, measured: how often the model is right, and whether it should be.

A few images are answered a second time, by the source parameters. Where the two answers differ, one
of them is wrong, and calibration knows how far an answer's certainty can be believed. When the
source is believed more, adaptation does harm: it is undone, and the source answers for a while.

    e_i = P(right | certainty of the adapted answer) - P(right | certainty of the source's answer)

over images i on which the two disagree; harm is mean e < -margin and mean e < -z standard errors.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, Reliability
from zotta_edge.options import Options, option
from zotta_edge.runtime.events import Events, Held
from zotta_edge.runtime.watch.allowance import Allowance
from zotta_edge.runtime.watch.reliability import believed
from zotta_edge.runtime.watch.statistics import Doubles

_LEAST_SPREAD = 0.1  # of e: a few answers that happen to be alike prove nothing
_CLEARER = 2.0  # a single answer must speak three times as clearly as many
_DOUBT = 0.05  # of the images may be compared on suspicion alone, without end
_LONGEST = 64  # holds: each is twice as long as the one before, up to this many times the first


@dataclass(frozen=True)
class AuditSettings(Options):
    """Chosen on CIFAR-10 images and corruptions that no result is reported for (docs/trust.md)."""

    audit: float = option(
        0.03, "share of the images that the source answers too, to compare; 0: none", low=0, high=1
    )
    audit_margin: float = option(0.1, "by how much the source must be believed more", low=0, high=1)
    audit_errors: float = option(3.0, "standard errors that this must exceed", low=0)
    audit_least: int = option(8, "differing answers before a verdict", low=2)
    audit_first: int = option(8, "images that are all compared at first", low=0)
    audit_window: int = option(
        64,
        "differing answers that are remembered; images all compared after a hold, and in doubt",
        low=2,
    )
    audit_hold: int = option(256, "images that the source answers after a verdict", low=1)


class Audit:
    """Compares adapted answers with the source's on a few images, on all of them while in doubt.

    Parameters
    ----------
    reliability
        What calibration learned about the model's certainty; None: nothing is compared.
    ask_source
        The source parameters' logits for prepared images.
    """

    def __init__(
        self,
        reliability: Reliability | None,
        settings: AuditSettings,
        events: Events,
        ask_source: Callable[[Floats], Floats],
    ) -> None:
        self._reliability = reliability if settings.audit else None
        self._settings, self._events, self._ask_source = settings, events, ask_source
        self.doubt = Allowance(settings.audit_window, _DOUBT)
        self.holds = 0  # verdicts so far: a reset keeps the count
        self.reset()

    def reset(self) -> None:
        self._forget()
        self.doubt.reset()
        self._due = 0.0
        self._left = 0  # images of the present hold
        self._probation = self._settings.audit_first  # images that are all compared
        self._next = self._settings.audit_hold

    def _forget(self) -> None:
        self._sums = np.zeros(3)  # of 1, e and e^2 over differing answers, older ones fading

    @property
    def holding(self) -> bool:
        """Whether the source answers instead of what was learned."""
        return self._left > 0

    def wait(self, images: int) -> None:
        """Count images that the source answered: a hold is over after so many."""
        self._left = max(0, self._left - images)

    def finds_harm(self, images: Floats, logits: Floats) -> bool:
        """Compare some of a batch's answers; whether they show that adaptation does harm."""
        if self._reliability is None:
            return False
        chosen = self._chosen(len(images))
        if not len(chosen):
            return False
        source, adapted = self._ask_source(images[chosen]), logits[chosen]
        differ = adapted.argmax(axis=1) != source.argmax(axis=1)
        self._take_in(
            believed(self._reliability, adapted[differ])
            - believed(self._reliability, source[differ])
        )
        return self._verdict()

    def _chosen(self, images: int) -> NDArray[np.intp]:
        """Every 1/share-th image; every one at first, after a hold, and in doubt while it lasts."""
        tested = min(images, self._probation)
        self._probation -= tested
        self.doubt.earn(images)
        doubted = self.doubt.take(images - tested) if self._suspicious else 0
        shares = np.full(images, self._settings.audit)
        shares[: tested + doubted] = 1.0
        due = self._due + np.cumsum(shares)
        whole = np.floor(due + 1e-9)  # ten tenths are one
        self._due = float(due[-1] - whole[-1])
        return np.flatnonzero(np.diff(whole, prepend=0.0) > 0)

    def _take_in(self, differences: Doubles) -> None:
        """e_i of the images on which the two disagree."""
        keep = 1 - 1 / self._settings.audit_window
        for e in differences:
            self._sums = keep * self._sums + np.array([1.0, e, e * e])

    def _verdict(self) -> bool:
        s = self._settings
        count, mean = self._sums[0], self._mean
        if count < s.audit_least or mean > -max(s.audit_margin, s.audit_errors * self._error):
            return False
        self.holds += 1
        self._left, self._next = self._next, min(2 * self._next, _LONGEST * s.audit_hold)
        self._probation = s.audit_window
        self._events.report(Held(self._left, -mean, int(count)))
        self._forget()
        return True

    @property
    def _suspicious(self) -> bool:
        """Whether all images are to be compared: the fewer answers, the clearer they must be."""
        count = self._sums[0]
        return bool(count and self._mean < -self._settings.audit_margin * (1 + _CLEARER / count))

    @property
    def _mean(self) -> float:
        return float(self._sums[1] / self._sums[0]) if self._sums[0] else 0.0

    @property
    def _error(self) -> float:
        """The standard error of the mean of e."""
        count, mean = self._sums[0], self._mean
        spread = math.sqrt(max(self._sums[2] / count - mean * mean, _LEAST_SPREAD**2))
        return spread / math.sqrt(count)

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "sums": self._sums,
            "due": np.array([self._due]),
            "left": np.array([self._left]),
            "next": np.array([self._next]),
            "probation": np.array([self._probation]),
            "holds": np.array([self.holds]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums, self._due = state["sums"], float(state["due"][0])
        self._left, self._next = int(state["left"][0]), int(state["next"][0])
        self._probation = int(state["probation"][0])
        self.holds = int(state["holds"][0])
