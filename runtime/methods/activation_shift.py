"""Back-to-source activation shifting: FOA (Niu et al., ICML 2024), Eq. 8 and 9; ZOA has it too."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.watch.statistics import Doubles


@dataclass(frozen=True)
class ShiftSettings(Options):
    shift_memory: float = option(
        0.9, "1 - alpha of FOA's Eq. 9, memory of the embedding's running mean", low=0, high=1
    )


class ActivationShift:
    """logits = head(embedding + mu_S - mu_T), mu_T a running mean of the stream's embeddings."""

    def __init__(self, engine: Engine, calibration: Calibration, settings: ShiftSettings) -> None:
        self._memory = settings.shift_memory
        self._head = Head.open(engine)
        self._source = calibration.embedding_mean.astype(np.float64)
        self.reset()

    def reset(self) -> None:
        self._mean: Doubles | None = None

    def logits(self, outputs: Outputs) -> Floats:
        """With the means of earlier batches; the first one is answered as it is."""
        mean = self._mean
        if mean is None:
            return outputs.logits
        moved = outputs.embedding + (self._source - mean)
        return self._head(moved.astype(np.float32))

    def observe(self, outputs: Outputs) -> None:
        mean = outputs.embedding.mean(axis=0, dtype=np.float64)
        before = mean if self._mean is None else self._mean
        self._mean = self._memory * before + (1 - self._memory) * mean

    def state(self) -> dict[str, NDArray[Any]]:
        mean = np.zeros(self._head.channels) if self._mean is None else self._mean
        return {"mean": mean, "known": np.array([self._mean is not None])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._mean = state["mean"] if state["known"][0] else None
