"""EVA-0: Chen et al., Test-Time Model Evolution with Only Two Forward Passes per Sample, 2026.

Written from the abstract (arXiv 2605.18867), which is all that was known of it here: two passes a
sample, perturbed to either side in a direction of the sample's own, for the update and for the
answer; a loss that a mere scale cannot lower; an anchor against drift of the weights. How each is
done is this project's reading, and so are all constants.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, calibration_of
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.statistics import (
    Doubles,
    Queue,
    QueueSettings,
    Source,
    entropies,
    floored,
    pooled,
)
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment
from zotta_edge.runtime.zeroth.parameters import Parameters


@dataclass(frozen=True)
class Eva0Settings(MethodSettings, QueueSettings):
    """Chosen here, on the four extra corruptions: none of them is published."""

    eva0_perturbation: float = option(0.02, "size of a perturbation", low=1e-6)
    eva0_rate: float = option(
        0.05, "length of a step for 64 samples, as a share of |theta_S|", low=0
    )
    eva0_anchor: float = option(
        0.05, "share of the way back to the source's affines, after each step", low=0, high=1
    )
    eva0_alignment: float = option(
        20.0, "weight of the features' squared distance from the source, in units of sigma_S", low=0
    )


class Eva0:
    """Every sample has a direction of its own; the mean of its two passes answers.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="eva0")
    >>> model.predict(digits).adapted, model.status()["steps"]
    (True, 1)
    """

    moves_affines: ClassVar[bool] = True

    def __init__(self, engine: Engine, settings: Eva0Settings, events: Events) -> None:
        source = Source.of(calibration_of(engine.info))
        self._engine, self._settings = engine, settings
        self._parameters = Parameters(engine.info, engine.chosen)
        self._unit = floored(source.std).astype(np.float32)
        standard = Source(source.mean / self._unit, source.std / self._unit, source.samples,
                          source.ends)  # fmt: skip
        self._queue = Queue(settings.queue, len(source.mean))
        weight = settings.eva0_alignment / len(source.mean)
        self._alignment = EntropyAndAlignment(standard, 0.0, weight, "mean", self._queue)
        self.reset()

    def reset(self) -> None:
        self._theta = self._parameters.source
        self._updates = 0
        self._rng = np.random.default_rng(self._settings.seed)
        self._queue.reset()

    def predict(self, images: Floats) -> Answer:
        batch = Batch.of(self._engine, self._parameters, images)
        u = self._rng.standard_normal((len(images), len(self._theta)), dtype=np.float32)
        step = np.float32(self._settings.eva0_perturbation) * u
        plus, minus = batch(self._theta + step), batch(self._theta - step)
        slopes = self._differences(plus, minus).astype(np.float32)
        self._theta = self._moved(slopes @ u, len(images))
        self._queue.push(self._in_units(plus))
        self._updates += 1
        return Answer((plus.logits + minus.logits) * np.float32(0.5), True, None)

    def read(self, images: Floats) -> Answer:
        batch = Batch.of(self._engine, self._parameters, images)
        return Answer(batch(self._theta).logits, False, None)

    def _differences(self, plus: Outputs, minus: Outputs) -> Doubles:
        """What each sample's step does to the loss, [batch]."""
        sharper = scale_free_difference(plus.logits, minus.logits)
        aligned = self._alignment.differences(self._in_units(plus), self._in_units(minus))
        return sharper / len(sharper) + aligned

    def _in_units(self, outputs: Outputs) -> Outputs:
        return Outputs(outputs.logits, (pooled(outputs) / self._unit,), outputs.embedding)

    def _moved(self, gradient: Floats, batch: int) -> Floats:
        """A step of fixed length down the estimate, then part of the way to the anchor."""
        source, own = self._parameters.source, self._settings
        length = own.eva0_rate * np.linalg.norm(source) * np.sqrt(batch / 64)
        size = max(float(np.linalg.norm(gradient)), 1e-30)
        theta = self._theta - np.float32(length / size) * gradient
        moved: Floats = theta + np.float32(own.eva0_anchor) * (source - theta)
        return moved

    def state(self) -> dict[str, NDArray[Any]]:
        own = {"theta": self._theta, "updates": np.array([self._updates])}
        rng = {"rng": states.rng_to_array(self._rng)}
        return own | rng | states.states_of({"queue": self._queue})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all({"queue": self._queue}, state)
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


def scale_free_difference(plus: Floats, minus: Floats) -> Doubles:
    """H_i+ - H_i- of logits brought to one length, the mean of the two: scale changes nothing."""
    centred = [side - side.mean(axis=1, keepdims=True) for side in (plus, minus)]
    lengths = [np.linalg.norm(side, axis=1, keepdims=True) for side in centred]
    common = (lengths[0] + lengths[1]) / 2
    above, below = (
        entropies(side * (common / np.maximum(length, 1e-12)))
        for side, length in zip(centred, lengths, strict=True)
    )
    return (above - below).astype(np.float64)
