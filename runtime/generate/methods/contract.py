"""What every way to adapt a decoder offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.generate.engine import DecoderEngine, Pass, Scales
from zotta_edge.runtime.generate.generation import Completion
from zotta_edge.runtime.generate.prompts import Batch


@dataclass(frozen=True, eq=False)
class Move:
    """With what a batch of prompts is answered; empty: as the source would."""

    scales: Scales | None = None  # of the norms
    shift: Floats | None = None  # of the last hidden state, [batch or 1, 1, hidden]
    started: Pass | None = None  # the pass over the prompts, where the method made it already
    answers: tuple[Completion, ...] = ()  # what the prompts give, where the method knows already

    @property
    def is_source(self) -> bool:
        return self.scales is None and self.shift is None


class Method(Protocol):
    """One stream's adaptation."""

    def __init__(self, engine: DecoderEngine, settings: Any, events: Events) -> None: ...

    def prepare(self, batch: Batch, limit: int) -> Move:
        """Learn from prompts what is due before they are answered; how to answer them."""
        ...

    def current(self) -> Move:
        """How a prompt would be answered without learning from it."""
        ...

    def reset(self) -> None:
        """Back to the source: the same prompts give the same answers again."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs to continue bit for bit; names and shapes never change."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...

    def status(self) -> dict[str, Any]:
        """For reports: plain numbers and texts."""
        ...


class Forgetful:
    """The part of the contract that is empty for a method that keeps nothing between prompts."""

    def current(self) -> Move:
        return Move()

    def reset(self) -> None: ...

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...

    def status(self) -> dict[str, Any]:
        return {}
