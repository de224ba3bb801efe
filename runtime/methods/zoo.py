"""Naive zeroth-order optimisation, which ZOTTA is compared with: all norms, entropy alone.

Eq. 2 as it stands, on every batch: no choice of layers, no alignment, no gate and no guard.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, ModelInfo
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.statistics import entropies
from zotta_edge.runtime.zeroth.estimator import DirectionSettings, SharedDirections
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.objective import EntropySettings, Reduction
from zotta_edge.runtime.zeroth.optimiser import OptimiserSettings, Sgd
from zotta_edge.runtime.zeroth.parameters import Parameters


@dataclass(frozen=True)
class ZooSettings(MethodSettings, DirectionSettings, EntropySettings, OptimiserSettings):
    """Nothing of its own."""


@dataclass(frozen=True)
class Entropy:
    """The first term of Eq. 5, with lambda1 = 1."""

    reduction: Reduction

    def __call__(self, outputs: Outputs) -> float:
        entropy = entropies(outputs.logits)
        return float(entropy.sum() if self.reduction == "sum" else entropy.mean())


class Zoo:
    """The affines of every norm follow Eq. 2's estimate of the entropy's gradient.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="zoo")
    >>> model.predict(digits).adapted, model.status()["steps"]
    (True, 1)
    """

    moves_affines: ClassVar[bool] = True

    def __init__(self, engine: Engine, settings: ZooSettings, events: Events) -> None:
        self._engine, self._settings = engine, settings
        self._parameters = Parameters(engine.info, engine.chosen)
        self._estimator = SharedDirections(settings.pairs, settings.directions)
        self._objective = Entropy(settings.reduction)
        self._optimiser = Sgd(len(self._parameters), settings.momentum)
        self.reset()

    @classmethod
    def layers(cls, info: ModelInfo, settings: ZooSettings) -> tuple[int, ...]:
        return tuple(index for index, layer in enumerate(info.layers) if layer.norms)

    def reset(self) -> None:
        self._theta = self._parameters.source
        self._updates = 0
        self._rng = np.random.default_rng(self._settings.seed)
        self._optimiser.reset()

    def predict(self, images: Floats) -> Answer:
        """Algorithm 1 without what is ZOTTA's own: estimate, step, answer."""
        batch = Batch.of(self._engine, self._parameters, images)
        for _ in range(self._settings.steps):
            self._updates += 1
            rate, size = self._settings.rate(self._updates), self._settings.size(self._updates)
            estimate = self._estimator(batch, self._theta, self._objective, size, self._rng)
            self._theta = self._optimiser.step(self._theta, estimate.gradient, rate)
        return Answer(batch(self._theta).logits, True, None)

    def read(self, images: Floats) -> Answer:
        batch = Batch.of(self._engine, self._parameters, images)
        return Answer(batch(self._theta).logits, False, None)

    def state(self) -> dict[str, NDArray[Any]]:
        own = {"theta": self._theta, "updates": np.array([self._updates])}
        rng = {"rng": states.rng_to_array(self._rng)}
        return own | rng | states.joined({"optimiser": self._optimiser.state()})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._optimiser.restore(states.section(state, "optimiser"))
        self._theta, self._updates = state["theta"], int(state["updates"][0])
        self._rng = states.rng_from_array(state["rng"])

    def status(self) -> dict[str, Any]:
        moved = np.linalg.norm(self._theta - self._parameters.source)
        return {
            "steps": self._updates,
            "distance": float(moved / np.linalg.norm(self._parameters.source)),
            "layers": list(self._engine.chosen),
            "parameters": len(self._parameters),
        }
