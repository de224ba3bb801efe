"""When to adapt: on drift, for as long as the objective falls, and again after a change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from zotta_edge.options import option
from zotta_edge.runtime.events import Events, PhaseChanged
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.drift import Drift, DriftSettings

Phase = Literal["watching", "adapting", "settled"]


@dataclass(frozen=True)
class GateSettings(DriftSettings):
    always: bool = option(False, "adapt on every batch, as the paper does")
    patience: int = option(512, "samples after which adaptation must have paid", low=1)
    worthwhile: float = option(
        0.01, "share by which the objective must fall from one such stretch to the next", low=0
    )


class Gate:
    """Watching costs plain inference; only a significant drift opens the gate.

    It closes when the stream is like the source again (`returned`), or when the objective, taken
    on fresh samples before each update, has not fallen from one stretch of `patience` samples to
    the next by the share `worthwhile`. Closed that way it opens when the stream changes.
    """

    def __init__(self, drift: Drift, settings: GateSettings, events: Events) -> None:
        self._drift, self._settings, self._events = drift, settings, events
        self.reset()

    def reset(self) -> None:
        self.phase: Phase = "watching"
        self._start_stretch()

    @property
    def open(self) -> bool:
        return self._settings.always or self.phase == "adapting"

    def update(self) -> bool:
        """Follow the drift; True when the stream has just come back to the source."""
        drifted = self._drift.significant
        if self.phase == "watching":
            if drifted:
                self._enter("adapting", f"drift {self._drift.score:.2f}")
            return False
        half = self._settings.drift_threshold / 2  # at the whole threshold it would flicker
        if self._drift.significance <= half:
            self._enter("watching", "the stream is like the source again")
            return not self._settings.always
        if drifted and self._drift.changed:
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
        self._events.report(PhaseChanged(self.phase, phase, reason))
        self.phase = phase
        self._drift.remember()
        self._start_stretch()

    def _start_stretch(self, previous: float = np.inf) -> None:
        self._previous, self._total, self._samples = previous, 0.0, 0

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "phase": states.text_to_array(self.phase),
            "previous": np.array([self._previous]),
            "total": np.array([self._total]),
            "samples": np.array([self._samples]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.phase = cast(Phase, states.text_from_array(state["phase"], get_args(Phase)))
        self._previous, self._total = float(state["previous"][0]), float(state["total"][0])
        self._samples = int(state["samples"][0])
