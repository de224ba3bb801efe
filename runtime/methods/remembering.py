"""A memory of classes behind a method that has none of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, Method, MethodSettings
from zotta_edge.runtime.methods.registry import find
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.class_memory import ClassMemory

_MEMORY = states.row("memory", "classes")


def opened(name: str, engine: Engine, settings: MethodSettings, events: Events) -> Method:
    """A method by its name, with a memory of classes where the settings ask for one."""
    kind = find(name)
    method = kind(engine, settings, events)
    if settings.class_memory != "on" or getattr(kind, "remembers_classes", False):
        return method
    return Remembering(method, engine.info.classes, settings, events)


class Remembering:
    """Corrects a method's answers in order; what is only read stays the method's own.

    The method tells nothing of repeated frames: each counts as an image.

    >>> from zotta_edge import AdaptiveModel, Settings
    >>> from zotta_edge.models import embedded
    >>> model = AdaptiveModel.load(embedded.MODEL, Settings(class_memory="on"), "none")
    >>> result = model.predict(embedded.digits(16))
    >>> model.status()["class_memory"]["active"]
    False
    """

    moves_affines: ClassVar[bool] = True  # not asked: the method within has opened the engine

    def __init__(
        self, method: Method, classes: int, settings: MethodSettings, events: Events
    ) -> None:
        self._method, self._memory = method, ClassMemory(classes, settings, events)

    def predict(self, images: Floats) -> Answer:
        answer = self._method.predict(images)
        return replace(answer, logits=self._memory(answer.logits))

    def read(self, images: Floats) -> Answer:
        return self._method.read(images)

    def reset(self) -> None:
        self._method.reset()
        self._memory.reset()

    def state(self) -> dict[str, NDArray[Any]]:
        return self._method.state() | states.states_of({_MEMORY: self._memory})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all({_MEMORY: self._memory}, state)
        own = {name: array for name, array in state.items() if not name.startswith(_MEMORY)}
        self._method.restore(own)

    def status(self) -> dict[str, Any]:
        return self._method.status() | {"class_memory": self._memory.status()}
