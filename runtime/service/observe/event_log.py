"""What happened to the model lately and why: its own decisions, and what people asked for."""

import logging
import threading
import time
from collections import deque
from typing import Any

from zotta_edge.runtime.events import Collapsed, Event, Returned
from zotta_edge.runtime.service.observe.metrics import Metrics

KEPT = 100  # events
_RESETS = (Collapsed.kind, Returned.kind)  # decisions that put the model back to the source


class EventLog:
    """The recent events of one model, written by the thread that adapts and read by any other.

    Parameters
    ----------
    metrics
        Counts every event by its kind.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._recent: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._last_reset: dict[str, Any] | None = None

    def record(self, event: Event) -> None:
        """Take in a decision of the model; details of single steps are only counted."""
        self._metrics.event(event.kind)
        if event.level >= logging.INFO:
            self._add(event.to_dict())
        if event.kind in _RESETS:
            self.record_reset(event.kind)

    def note(self, kind: str, reason: str = "asked for") -> None:
        """Take in what was done to the model: a reset, a pause, a snapshot, ..."""
        self._metrics.event(kind)
        self._add({"kind": kind, "reason": reason})

    def record_reset(self, reason: str) -> None:
        """Remember that the model went back to the source."""
        self._metrics.resets.labels(reason).inc()
        with self._lock:
            self._last_reset = {"time": time.time(), "reason": reason}

    def recent(self) -> list[dict[str, Any]]:
        """The last events, oldest first: time, kind, reason and the figures behind it."""
        with self._lock:
            return list(self._recent)

    @property
    def last_reset(self) -> dict[str, Any] | None:
        with self._lock:
            return self._last_reset

    def _add(self, entry: dict[str, Any]) -> None:
        with self._lock:
            self._recent.append({"time": time.time()} | entry)
