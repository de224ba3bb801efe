"""T3A: Iwasawa and Matsuo, Test-Time Classifier Adjustment Module, NeurIPS 2021.

The direction of each class's row becomes the mean direction of confident features of that class.
The rows' lengths and the bias, which the paper drops, are kept: so the classifier is the model's
own until a sample has come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings
from zotta_edge.runtime.watch.statistics import entropies


@dataclass(frozen=True)
class T3ASettings(MethodSettings):
    t3a_supports: int = option(
        20, "M, directions kept a class, those of lowest entropy; the first is its own row", low=1
    )


class T3A:
    """Replaces the rows of the classifier by means of confident features.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="t3a")
    >>> model.predict(digits).adapted
    True
    >>> model.status()["supports"]  # 10 rows of the classifier, and the digits
    26
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: T3ASettings, events: Events) -> None:
        self._engine, self._settings = engine, settings
        weight, self._bias = Head.open(engine).weights()
        self._rows = np.ascontiguousarray(weight.T)  # [class, D]
        self._lengths = np.linalg.norm(self._rows, axis=1)  # [class]
        self.reset()

    def reset(self) -> None:
        classes, channels = self._rows.shape
        supports = self._settings.t3a_supports
        self._supports: Floats = np.zeros((classes, supports, channels), np.float32)
        self._entropies: Floats = np.full((classes, supports), np.inf, np.float32)  # inf: unused
        self._supports[:, 0] = _unit(self._rows)
        self._entropies[:, 0] = entropies(self._rows @ self._rows.T + self._bias)
        self._centroids = self._adjusted()  # as `restore` would: the same bits

    def predict(self, images: Floats) -> Answer:
        outputs = self._pass(images)
        for label, entropy, direction in zip(
            outputs.logits.argmax(axis=1),
            entropies(outputs.logits),
            _unit(outputs.embedding),
            strict=True,
        ):
            self._support(label, entropy, direction)
        self._centroids = self._adjusted()
        return self._answer(outputs, True)

    def read(self, images: Floats) -> Answer:
        return self._answer(self._pass(images), False)

    def _pass(self, images: Floats) -> Outputs:
        return self._engine.cone(self._engine.stem(images), {})

    def _answer(self, outputs: Outputs, adapted: bool) -> Answer:
        return Answer(outputs.embedding @ self._centroids.T + self._bias, adapted, None)

    def _support(self, label: np.intp, entropy: np.float32, direction: Floats) -> None:
        """A sample takes the place of the least certain of its class, if it is more certain."""
        place = self._entropies[label].argmax()
        if entropy < self._entropies[label, place]:
            self._entropies[label, place] = entropy
            self._supports[label, place] = direction

    def _adjusted(self) -> Floats:
        """c_k = |w_k| sum_j s_kj / |sum_j s_kj|, [class, D]."""
        adjusted: Floats = self._lengths[:, None] * _unit(self._supports.sum(axis=1))
        return adjusted

    def state(self) -> dict[str, NDArray[Any]]:
        return {"supports": self._supports.copy(), "entropies": self._entropies.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._supports, self._entropies = state["supports"].copy(), state["entropies"].copy()
        self._centroids = self._adjusted()

    def status(self) -> dict[str, Any]:
        return {"supports": int(np.isfinite(self._entropies).sum())}


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Floats = vectors / np.maximum(lengths, 1e-12)
    return unit
