"""Take out what is still off where the classifier reads: logits = head(embedding - delta)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.methods.primed.class_mix import ClassMix
from zotta_edge.runtime.methods.primed.offset import Offset
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.watch.statistics import Doubles


class EmbeddingCorrection:
    """The running offset of the embedding from the source's mean.

    The head is linear, so taking the offset out is a constant on the logits: logits - delta W.
    """

    def __init__(
        self, weights: Floats, calibration: Calibration, mix: ClassMix, settings: PrimedSettings
    ) -> None:
        self._weights = weights  # W [E, class]
        self._mean = calibration.embedding_mean
        variance = np.square(calibration.embedding_std, dtype=np.float64)
        self._offset = Offset(variance, np.array([len(variance)]), mix, settings)

    def observe(self, outputs: Outputs, weights: Doubles, explained: Floats | float = 0.0) -> None:
        self._offset.add(outputs.embedding - self._mean - explained, weights)

    def delta(self) -> Floats:
        """How far the embedding is off, as far as that is significant, [E]."""
        return self._offset.significant().astype(np.float32)

    def corrected(self, logits: Floats, delta: Floats) -> Floats:
        return logits - delta @ self._weights

    def reset(self) -> None:
        self._offset.reset()

    def state(self) -> dict[str, NDArray[Any]]:
        return self._offset.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._offset.restore(state)
