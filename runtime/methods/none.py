"""Plain inference: what every adaptation is measured against."""

from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.engine import Engine
from zotta_edge.runtime.methods import Answer
from zotta_edge.runtime.settings import Settings


class NoAdaptation:
    """The source parameters, always."""

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine

    def predict(self, images: Floats) -> Answer:
        return Answer(self._engine.cone(self._engine.stem(images), {}).logits, False, None)

    read = predict

    def reset(self) -> None: ...

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...

    def status(self) -> dict[str, Any]:
        return {}
