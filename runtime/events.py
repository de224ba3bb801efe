"""What adaptation decided and why, as typed events: for logs, reports, the service, a dashboard."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """One decision. `kind` is its stable name, `reason` a sentence with the figures behind it."""

    kind: ClassVar[str]
    level: ClassVar[int] = logging.INFO

    @property
    def reason(self) -> str:
        raise NotImplementedError


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class PhaseChanged(Event):
    kind: ClassVar[str] = "phase"
    before: str
    after: str
    why: str

    @property
    def reason(self) -> str:
        return f"{self.before} -> {self.after}: {self.why}"


@dataclass(frozen=True)
class StreamChanged(Event):
    """Another stream has begun; adaptation starts from the source again."""

    kind: ClassVar[str] = "changed"
    drift: float

    @property
    def reason(self) -> str:
        return f"another stream has begun, drift {self.drift:.2f}"


@dataclass(frozen=True)
class FilterChosen(Event):
    kind: ClassVar[str] = "filter"
    before: str
    after: str
    loss: float
    unfiltered_loss: float

    @property
    def reason(self) -> str:
        losses = f"loss {self.loss:.3g}, {self.unfiltered_loss:.3g} without"
        return f"{self.before} -> {self.after}: {losses}"


@dataclass(frozen=True)
class StepShortened(Event):
    kind: ClassVar[str] = "shortened"
    level: ClassVar[int] = logging.DEBUG
    length: float  # relative to the source's norm
    limit: float

    @property
    def reason(self) -> str:
        return f"{self.length:.3f} of the source's norm to {self.limit:.3f}"


@dataclass(frozen=True)
class DistanceBounded(StepShortened):
    kind: ClassVar[str] = "bounded"


@dataclass(frozen=True)
class RolledBack(Event):
    """An update raised the objective of its own samples and was undone."""

    kind: ClassVar[str] = "rollback"
    before: float
    after: float

    @property
    def reason(self) -> str:
        return f"objective {self.before:.4g} -> {self.after:.4g}"


@dataclass(frozen=True)
class Collapsed(Event):
    """One class took over while entropy fell; adaptation went back to the source."""

    kind: ClassVar[str] = "collapse"
    level: ClassVar[int] = logging.WARNING
    label: int
    agreeing: float  # share of the batch in which the source sees that class

    @property
    def reason(self) -> str:
        return f"class {self.label} took over, the source sees it in {self.agreeing:.0%}"


@dataclass(frozen=True)
class Returned(Event):
    """The stream is like the source again."""

    kind: ClassVar[str] = "returned"
    drift: float

    @property
    def reason(self) -> str:
        return f"the stream is like the source again, drift {self.drift:.2f}"


class Events:
    """Where a method reports; every listener hears every event, in order, in the writer's thread.

    >>> events = Events()
    >>> heard = []
    >>> events.subscribe(heard.append)
    >>> events.report(StreamChanged(drift=1.25))
    >>> heard[0].kind, heard[0].reason
    ('changed', 'another stream has begun, drift 1.25')
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def report(self, event: Event) -> None:
        log.log(event.level, "%s: %s", event.kind, event.reason)
        for listener in tuple(self._listeners):
            listener(event)
