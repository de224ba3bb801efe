"""Real cameras see the same thing for a while: neighbours in time speak for an image's class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.events import ClassMemoryChanged, Events
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.order import order
from zotta_edge.runtime.watch.statistics import Doubles, log_softmax
from zotta_edge.runtime.watch.sticky import RATES, StickyChain, smoothed

_STICKY = RATES > 0
_LEAST = 1e-12  # of a probability, before its logarithm
_UNSEEN = 1.5  # times the doubt: evidence that is kept at most while no order is seen


@dataclass(frozen=True)
class ClassMemorySettings(Options):
    """Chosen on images under the extra and home-made corruptions (docs/primed.md, "Runs")."""

    class_memory: Literal["auto", "on", "off"] = option(
        "auto",
        "let neighbours in time speak for an image's class while classes come in runs; auto: with "
        "primed alignment, on: with every method",
    )
    memory_temperature: float = option(
        1.5, "answers are this much less sure than they say: logits are divided by it", low=0.1
    )
    memory_doubt: float = option(
        6.0, "log evidence for runs of classes before neighbours are believed", low=0
    )
    memory_trust: float = option(
        20.0, "log evidence that is kept at most: the next images may come in no order", low=0
    )
    memory_order: float = option(
        4.0, "deviations by which answers must be more alike their neighbours than by chance", low=0
    )
    memory_window: int = option(200, "images behind evidence and order", low=8)


class ClassMemory:
    """Corrects answers by their neighbours in time, where these have shown to know them.

    A stream whose classes come in no order is not touched. Neither is a still one, whose frames
    are one sample, whatever their number.

    >>> from zotta_edge.runtime.settings import Settings
    >>> memory = ClassMemory(10, Settings(), Events())
    >>> runs = 5 * np.eye(10, dtype=np.float32)[np.repeat(np.arange(10), 20)]
    >>> runs[150] = 0  # an image that says nothing, in the eighth run
    >>> int(memory(runs)[150].argmax()), memory.active
    (7, True)
    """

    def __init__(self, classes: int, settings: ClassMemorySettings, events: Events) -> None:
        self._settings, self._events = settings, events
        self._chain, self._new = StickyChain(classes), NewShare()
        self._off = settings.class_memory == "off" or classes < 2  # one: there are no class scores
        self.reset()

    def reset(self) -> None:
        self.active = False
        self._evidence = np.zeros(len(RATES))
        self._recent: NDArray[np.intp] = np.full(self._settings.memory_window, -1)
        self._order = 0.0
        self._chain.reset()
        self._new.reset()

    def __call__(self, logits: Floats, weights: Doubles | None = None) -> Floats:
        """The logits of a batch in order, or the log of what they are in the light of the others.

        Earlier images count, and later ones of the same batch. `weights` tell how new each image
        is, 0 to 1; None: all are.
        """
        if self._off:
            return logits
        moves = np.ones(len(logits), bool) if weights is None else self._new.enough(weights)
        if not np.isfinite(logits).all() or not moves.any():
            return logits
        answers = np.exp(log_softmax(logits[moves] / np.float32(self._settings.memory_temperature)))
        batch = self._chain.forward(answers.astype(np.float64))
        self._judge(batch.evidence, logits[moves].argmax(axis=1))
        if not self.active:
            return logits
        posterior = np.einsum("r,nrc->nc", self._believed(), smoothed(batch))
        corrected = logits.copy()
        corrected[moves] = np.log(np.maximum(posterior, _LEAST))
        return corrected

    def _judge(self, evidence: Doubles, answers: NDArray[np.intp]) -> None:
        """Take in a batch's evidence and answers; whether they show runs of classes."""
        window, most = self._settings.memory_window, self._most
        for each in evidence:
            self._evidence = (1 - 1 / window) * self._evidence + each
            excess = max(0.0, self.evidence - most)
            self._evidence -= np.where(_STICKY, excess, 0)
        self._recent = np.concatenate([self._recent, answers])[-window:]
        sure = self.evidence > self._settings.memory_doubt
        self._order = order(self._recent[self._recent >= 0]) if sure else 0.0
        active = sure and self._order > self._settings.memory_order
        if active != self.active:
            self.active = active
            self._events.report(ClassMemoryChanged(active, self.evidence, self._order))

    @property
    def _most(self) -> float:
        """Evidence that is kept: one class for long, and then any, must not pass for runs."""
        trust = self._settings.memory_trust
        return trust if self.active else min(trust, _UNSEEN * self._settings.memory_doubt)

    @property
    def evidence(self) -> float:
        """Log evidence of the best rate of staying over none."""
        return float(self._evidence[_STICKY].max())

    def _believed(self) -> Doubles:
        """Weights of the rates by their evidence; rho = 0 has none."""
        weights = np.where(_STICKY, np.exp(self._evidence - self.evidence), 0)
        believed: Doubles = weights / weights.sum()
        return believed

    def status(self) -> dict[str, Any]:
        return {"active": self.active, "evidence": self.evidence, "order": self._order}

    def state(self) -> dict[str, NDArray[Any]]:
        own = {
            "active": np.array([self.active]),
            "evidence": self._evidence,
            "order": np.array([self._order]),
            "recent": self._recent,
        }
        return own | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self.active, self._order = bool(state["active"][0]), float(state["order"][0])
        self._evidence, self._recent = state["evidence"], state["recent"]

    def _parts(self) -> dict[str, states.Stateful]:
        return {"chain": self._chain, "new": self._new}


class NewShare:
    """Which images belong to a stream that moves on: of the last 16 or so, one in ten is new."""

    _IMAGES, _LEAST = 16, 0.1

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._share = 0.0

    def enough(self, weights: Doubles) -> NDArray[np.bool_]:
        shares = []
        for weight in weights:
            self._share += (weight - self._share) / self._IMAGES
            shares.append(self._share)
        return np.array(shares) > self._LEAST

    def state(self) -> dict[str, NDArray[Any]]:
        return {"share": np.array([self._share])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._share = float(state["share"][0])
