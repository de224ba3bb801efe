"""NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering.

The features of the source lie around the origin; those of a shifted stream are moved back there.
The mean is that of all samples, as published for one stream; its authors take an exponential one
where streams follow each other.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings
from zotta_edge.runtime.watch.statistics import Doubles


class Neo:
    """logits = head(embedding - mean of all embeddings so far).

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="neo")
    >>> model.predict(digits).adapted
    True
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: MethodSettings, events: Events) -> None:
        self._engine, self._head = engine, Head.open(engine)
        self.reset()

    def reset(self) -> None:
        self._seen: tuple[Doubles, int] = np.zeros(self._head.channels), 0  # mean [D], samples

    def predict(self, images: Floats) -> Answer:
        outputs = self._pass(images)
        mean, samples = self._seen
        total = mean * samples + outputs.embedding.sum(axis=0, dtype=np.float64)
        samples += len(images)
        self._seen = total / samples, samples
        return Answer(self._logits(outputs), True, None, features=outputs.features)

    def read(self, images: Floats) -> Answer:
        return Answer(self._logits(self._pass(images)), False, None)

    def _pass(self, images: Floats) -> Outputs:
        return self._engine.cone(self._engine.stem(images), {})

    def _logits(self, outputs: Outputs) -> Floats:
        mean, samples = self._seen
        if samples < 2:  # the mean of one sample is that sample: nothing would be left of it
            return outputs.logits
        return self._head(outputs.embedding - mean.astype(np.float32))

    def state(self) -> dict[str, NDArray[Any]]:
        return {"mean": self._seen[0], "samples": np.array([self._seen[1]])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._seen = state["mean"], int(state["samples"][0])

    def status(self) -> dict[str, Any]:
        return {"distance": float(np.linalg.norm(self._seen[0]))}
