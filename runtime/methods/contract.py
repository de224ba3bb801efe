"""What every way to adapt offers, whatever it does in between."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Calibration, Floats, ModelInfo
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.watch.audit import AuditSettings
from zotta_edge.runtime.watch.class_memory import ClassMemorySettings
from zotta_edge.runtime.watch.misprepared import MispreparedSettings


@dataclass(frozen=True)
class MethodSettings(MispreparedSettings, ClassMemorySettings, AuditSettings):
    """What can be set for every method; a method's own settings are a subclass."""

    seed: int = option(0, "of everything random", low=0)
    layers: tuple[int, ...] | None = option(
        None, "layers to adapt by index; unset: those calibration chose", low=0
    )
    episodic: bool = option(False, "forget everything before each batch")


@dataclass(frozen=True)
class Answer:
    """A method's answer to one batch."""

    logits: Floats  # [batch, class]
    adapted: bool  # whether this batch changed the model
    drift: float | None  # distance of the stream from the source; None when it is not measured
    moved: bool = True  # False: just what the source parameters would have answered
    features: tuple[Floats, ...] = ()  # v_l of the pass that answered, where the method has them
    others: Mapping[str, Floats] = field(default_factory=dict)  # of a network without class scores


class Method(Protocol):
    """One stream's adaptation. Only `read` may run beside another call."""

    moves_affines: ClassVar[bool]  # False: the engine need not repeat any part of the graph

    def __init__(self, engine: Engine, settings: Any, events: Events) -> None:
        """`settings` is, or has the fields of, the method's own dataclass."""
        ...

    def predict(self, images: Floats) -> Answer:
        """Answer a batch [batch, C, H, W], and learn from it where that is due."""
        ...

    def read(self, images: Floats) -> Answer:
        """Answer with the parameters as they are; changes nothing."""
        ...

    def reset(self) -> None:
        """Start anew: the same stream gives the same answers again. Counts of events stay."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs to continue bit for bit; names and shapes never change."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...

    def status(self) -> dict[str, Any]:
        """For reports: plain numbers and texts."""
        ...


class Stateless:
    """The part of the contract that is empty for a method that keeps nothing between batches."""

    def reset(self) -> None: ...

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...

    def status(self) -> dict[str, Any]:
        return {}


def calibration_of(info: ModelInfo) -> Calibration:
    """What a method compares the stream with."""
    if info.calibration is None:
        raise ZottaError(
            "the model is not calibrated, adaptation does not know its source: run "
            "`zotta-edge calibrate MODEL --source DIR`"
        )
    return info.calibration
