"""When to adapt: on drift, while it pays, and again when the stream changes."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.drift import Drift

log = logging.getLogger(__name__)

Phase = Literal["watching", "adapting", "settled"]
_PHASES: tuple[Phase, ...] = ("watching", "adapting", "settled")


class Gate:
    """Watching costs plain inference; only a significant drift opens the gate.

    It closes when the stream is like the source again (`returned`), or when the objective, taken
    on fresh samples before each update, has not fallen from one stretch of `patience` samples to
    the next by the share `worthwhile`. Closed that way it opens when the stream changes.
    """

    def __init__(self, drift: Drift, settings: Settings) -> None:
        self._drift, self._settings = drift, settings
        self.reset()

    def reset(self) -> None:
        self.phase: Phase = "watching"
        self._start_stretch()

    @property
    def open(self) -> bool:
        return self._settings.always or self.phase == "adapting"

    def update(self) -> bool:
        """Look at the drift; True when the stream has just come back to the source."""
        threshold = self._settings.drift_threshold
        drifted = self._drift.significance >= threshold
        if self.phase == "watching":
            if drifted:
                self._enter("adapting", f"drift {self._drift.score:.2f}")
            return False
        if self._drift.significance <= threshold / 2:  # half: no flicker at the threshold
            self._enter("watching", "the stream is like the source again")
            return not self._settings.always
        if drifted and self._drift.change >= threshold:
            self._enter("adapting", "the stream changed")
        return False

    def record(self, loss: float, samples: int) -> None:
        """Take the objective of a fresh batch before its update; close when it stopped falling."""
        if self._settings.always:
            return
        self._total += loss * samples
        self._samples += samples
        if self._samples < self._settings.patience:
            return
        mean = self._total / self._samples
        if not mean < (1 - self._settings.worthwhile) * self._previous:
            self._enter("settled", f"objective {self._previous:.4g} -> {mean:.4g}, no longer pays")
        else:
            self._start_stretch(mean)

    def _enter(self, phase: Phase, reason: str) -> None:
        log.info("%s -> %s: %s", self.phase, phase, reason)
        self.phase = phase
        self._drift.remember()
        self._start_stretch()

    def _start_stretch(self, previous: float = np.inf) -> None:
        self._previous, self._total, self._samples = previous, 0.0, 0

    def state(self) -> dict[str, NDArray[Any]]:
        phase = _PHASES.index(self.phase)
        return {"numbers": np.array([phase, self._previous, self._total, self._samples])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        phase, self._previous, self._total, samples = state["numbers"].tolist()
        self.phase, self._samples = _PHASES[int(phase)], int(samples)
