"""Ways to adapt: each is one file behind one small interface, chosen by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Calibration, Floats, ModelInfo
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.settings import Settings

METHODS: Mapping[str, str] = {  # name -> module.class, imported when it is first asked for
    "none": "none.NoAdaptation",
    "primed": "primed.method.Primed",
    "zotta": "zotta.Zotta",
    "bn_adapt": "bn_adapt.method.BatchNormAdaptation",
    "lame": "lame.Lame",
    "t3a": "t3a.T3A",
    "neo": "neo.Neo",
    "foa": "foa.method.Foa",
    "zoo": "zoo.Zoo",
    "zoa": "zoa.method.Zoa",
}


@dataclass(frozen=True)
class Answer:
    logits: Floats  # [batch, class]
    adapted: bool  # whether this batch changed the model
    drift: float | None  # distance of the stream from the source; None when it is not measured


class Method(Protocol):
    """One stream's adaptation. Only `read` may run beside another call."""

    moves_affines: ClassVar[bool]  # False: the engine need not repeat any part of the graph

    def __init__(self, engine: Engine, settings: Settings) -> None: ...

    def predict(self, images: Floats) -> Answer:
        """Answer a batch [batch, C, H, W], and learn from it where that is due."""
        ...

    def read(self, images: Floats) -> Answer:
        """Answer with the parameters as they are; changes nothing."""
        ...

    def reset(self) -> None:
        """Be as new: the same stream gives the same answers again. Counts of events stay."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs to go on bit for bit; names and shapes never change."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...

    def status(self) -> dict[str, Any]:
        """For reports: plain numbers and texts."""
        ...


class Stateless:
    """What a method that learns nothing has to say of itself."""

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


def chosen_layers(
    kind: type[Method], settings: Settings, read: Callable[[], ModelInfo]
) -> tuple[int, ...] | None:
    """What `Engine.open` is to move: the settings' layers, the method's own, None: calibrated.

    A method that moves other layers than calibration chose has a class method `layers`.
    """
    if not kind.moves_affines:
        return ()
    own = getattr(kind, "layers", None)
    if settings.layers is not None or own is None:
        return settings.layers
    layers: tuple[int, ...] = own(read())
    return layers


def default_method(info: ModelInfo, settings: Settings) -> str:
    """What a file is adapted with unless one says otherwise: primed where it can be."""
    primed = info.prime is not None and settings.layers in (None, info.prime.layers)
    return "primed" if primed else "zotta"


def find(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise ZottaError(f"no method is called {name}: there are {', '.join(METHODS)}")
    module, _, kind = METHODS[name].rpartition(".")
    method: type[Method] = getattr(import_module(f"{__name__}.{module}"), kind)
    return method
