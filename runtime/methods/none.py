"""Plain inference: what every adaptation is measured against."""

from typing import ClassVar

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, Stateless


class NoAdaptation(Stateless):
    """The source parameters, always.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="none")
    >>> model.predict(digits).adapted
    False
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: MethodSettings, events: Events) -> None:
        self._engine = engine

    def predict(self, images: Floats) -> Answer:
        outputs = self._engine.cone(self._engine.stem(images), {})
        return Answer(outputs.logits, False, None, False, outputs.features, outputs.others)

    read = predict
