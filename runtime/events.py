"""What adaptation decided and why, as typed events: for logs, reports, the service, a dashboard."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event(ABC):
    """One decision of a method."""

    kind: ClassVar[str]  # a stable name
    level: ClassVar[int] = logging.INFO

    @property
    @abstractmethod
    def reason(self) -> str:
        """A sentence with the figures behind the decision."""

    def to_dict(self) -> dict[str, Any]:
        """Kind, reason and fields, for JSON: a number that is not finite becomes None."""
        return {"kind": self.kind, "reason": self.reason} | {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class PhaseChanged(Event):
    """A method began or stopped to adapt."""

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
    """Images of the stream go through another filter from now on."""

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
class ClassMemoryChanged(Event):
    """Neighbours in time began, or ceased, to speak for the classes of images."""

    kind: ClassVar[str] = "classes"
    active: bool
    evidence: float  # for runs of classes, natural log
    order: float  # of the answers, in deviations from chance

    @property
    def reason(self) -> str:
        what = "classes come in runs" if self.active else "classes no longer come in runs"
        return f"{what}: evidence {self.evidence:.1f}, order {self.order:.1f}"


@dataclass(frozen=True)
class StepShortened(Event):
    """An update was longer than the trust region allows."""

    kind: ClassVar[str] = "shortened"
    level: ClassVar[int] = logging.DEBUG
    length: float  # relative to the source's norm
    limit: float

    @property
    def reason(self) -> str:
        if not math.isfinite(self.length):
            return "the update is not finite"
        return f"{self.length:.3f} of the source's norm to {self.limit:.3f}"


@dataclass(frozen=True)
class DistanceBounded(StepShortened):
    """An update would have ended too far from the source."""

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
    """The stream is like the source again; adaptation went back to the source."""

    kind: ClassVar[str] = "returned"
    drift: float

    @property
    def reason(self) -> str:
        return f"the stream is like the source again, drift {self.drift:.2f}"


@dataclass(frozen=True)
class Held(Event):
    """Adapted answers were believed less than the source's: the source answers for a while."""

    kind: ClassVar[str] = "held"
    level: ClassVar[int] = logging.WARNING
    images: int  # that it answers
    harm: float  # by how much the source is believed more, where the two differ
    answers: int  # that differed

    @property
    def reason(self) -> str:
        return (
            f"in {self.answers} answers that differ the source is believed {self.harm:.0%} more: "
            f"it answers the next {self.images} images"
        )


@dataclass(frozen=True)
class Discarded(Event):
    """A batch whose numbers are not finite, or no image's; nothing was learned from it."""

    kind: ClassVar[str] = "discarded"
    level: ClassVar[int] = logging.WARNING
    why: str

    @property
    def reason(self) -> str:
        return self.why


@dataclass(frozen=True)
class Unlearned(Discarded):
    """What was learned gave no finite answers; adaptation went back to the source."""

    kind: ClassVar[str] = "unlearned"


class Events:
    """Where a method reports.

    Every listener gets every event, in order, in the thread that adapts; every event is also
    logged under `zotta_edge.runtime.events`.

    >>> events, received = Events(), []
    >>> events.subscribe(received.append)
    >>> events.report(StreamChanged(drift=1.25))
    >>> received[0].kind, received[0].reason
    ('changed', 'another stream has begun, drift 1.25')
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every event from now on.

        Parameters
        ----------
        listener
            Must return quickly and not call the model: adaptation waits for it.
        """
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Stop calling `listener`."""
        self._listeners.remove(listener)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Subscribe for the length of a `with` block."""
        self.subscribe(listener)
        try:
            yield
        finally:
            self.unsubscribe(listener)

    def report(self, event: Event) -> None:
        """Log an event, its fields included, and hand it to the listeners."""
        extra = {"fields": event.to_dict()}  # for JSON logs
        log.log(event.level, "%s: %s", event.kind, event.reason, extra=extra)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:  # a listener's fault must not stop an update half way
                log.exception("a listener failed on %s", event.kind)
