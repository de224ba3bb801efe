"""FOZO: Wang and Wang, Forward-Only Zeroth-Order Prompt Optimization, CVPR 2026.

Two passes a batch, with the prompts a step to either side of where they are; the better one
answers. The step's size shrinks from batch to batch and is large again when the loss jumps. Made
for transformers; on other networks it moves FOA's filter, which is not published.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.activation_shift import ActivationShift, ShiftSettings
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, calibration_of
from zotta_edge.runtime.methods.foa.searched import SearchedInput
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.statistics import (
    Doubles,
    Queue,
    QueueSettings,
    Source,
    entropies,
    moments,
)


@dataclass(frozen=True)
class FozoSettings(MethodSettings, QueueSettings, ShiftSettings):
    """As published (paper and code) for ViT-Base and batches of 64."""

    fozo_alignment: float = option(
        0.4, "lambda, weight of the distance from the source's statistics", low=0
    )
    fozo_reference_batch: int = option(64, "batch size that lambda is for", low=1)
    fozo_perturbation: float = option(0.5, "epsilon at first and after a jump of the loss", low=0)
    fozo_least_perturbation: float = option(0.2, "epsilon in the end", low=1e-6)
    fozo_decay: float = option(0.9, "of epsilon, a batch", low=0, high=1)
    fozo_first_rate: float = option(0.08, "eta before the first batch", low=0)
    fozo_rate: float = option(0.1, "least eta, and eta after a jump of the loss", low=0)
    fozo_rate_step: float = option(0.1, "what eta gains a batch", low=0)
    fozo_rate_decay: float = option(0.7, "of eta, a batch", low=0, high=1)
    fozo_jump: float = option(1.05, "loss over its running mean that counts as a jump", low=1)
    fozo_memory: float = option(0.9, "of the running mean of the loss", low=0, high=1)
    fozo_filter_step: float = option(
        0.01, "what one unit is to a filter's entry; prompts are moved as they are", low=0
    )


class Fozo:
    """SPSA on the prompts, and the embedding shifted back to the source.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="fozo")
    >>> model.predict(digits).adapted, model.status()["moved"]
    (True, 'prompts')
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: FozoSettings, events: Events) -> None:
        calibration = calibration_of(engine.info)
        self._engine, self._settings = engine, settings
        self._pass = SearchedInput(engine, settings.fozo_filter_step)
        self._source = Source.of(calibration)
        self._queue = Queue(settings.queue, len(self._source.mean))
        self._shift = ActivationShift(engine, calibration, settings)
        self.reset()

    def reset(self) -> None:
        for part in self._parts().values():
            part.reset()
        self._rng = np.random.default_rng(self._settings.seed)
        self._prompts: Doubles = np.zeros(self._pass.parameters)
        own = self._settings
        self._size, self._rate = own.fozo_perturbation, own.fozo_first_rate
        self._average = np.nan  # of the loss
        self._updates = 0
        self._publish()

    def predict(self, images: Floats) -> Answer:
        z = self._rng.standard_normal(len(self._prompts))
        sides = [self._pass(images, self._prompts + side * self._size * z) for side in (1, -1)]
        answers = [self._shift.logits(outputs) for outputs in sides]
        losses = [self._loss(*both) for both in zip(sides, answers, strict=True)]
        slope = (losses[0] - losses[1]) / (2 * self._size)
        best = int(np.argmin(losses))
        self._schedule(losses[best])
        self._prompts = self._prompts - self._rate * slope * z
        self._updates += 1
        self._shift.observe(_between(*sides))
        self._queue.push(sides[best])
        self._publish()
        return Answer(answers[best], True, None)

    def read(self, images: Floats) -> Answer:
        prompts, shift = self._known  # taken once: a call beside this one may replace it
        if not prompts.any():  # the model as it is in the file
            outputs = self._engine.cone(self._engine.stem(images), {})
        else:
            outputs = self._pass(images, prompts)
        return Answer(shift.logits(outputs), False, None)

    def _publish(self) -> None:
        self._known = self._prompts, copy(self._shift)

    def _loss(self, outputs: Outputs, logits: Floats) -> float:
        """sum H + lambda B / 64 (|mu - mu_S|^2 + |sigma - sigma_S|^2), H of the shifted answer."""
        features, _ = self._queue.beside(outputs)
        mean, std = moments(features)
        distance = np.square(mean - self._source.mean).sum()
        if len(features) > 1:  # one sample has no spread
            distance += np.square(std - self._source.std).sum()
        share = len(logits) / self._settings.fozo_reference_batch
        return float(entropies(logits).sum() + self._settings.fozo_alignment * share * distance)

    def _schedule(self, loss: float) -> None:
        """epsilon shrinks and eta settles; a jump of the loss sets both back."""
        own, known = self._settings, not np.isnan(self._average)
        past = self._average if known else loss
        self._average = own.fozo_memory * past + (1 - own.fozo_memory) * loss
        if loss > own.fozo_jump * self._average:
            self._size, self._rate = own.fozo_perturbation, own.fozo_rate
            return
        shrunk = own.fozo_decay * self._size
        self._size = max(min(own.fozo_least_perturbation, own.fozo_perturbation), shrunk)
        settled = own.fozo_rate_decay * self._rate + own.fozo_rate_step
        self._rate = max(own.fozo_rate, settled)

    def state(self) -> dict[str, NDArray[Any]]:
        schedule = np.array([self._size, self._rate])
        own = {"prompts": self._prompts, "schedule": schedule, "average": np.array([self._average])}
        own |= {"updates": np.array([self._updates]), "rng": states.rng_to_array(self._rng)}
        return own | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self._prompts, self._average = state["prompts"], float(state["average"][0])
        self._size, self._rate = map(float, state["schedule"])
        self._updates, self._rng = int(state["updates"][0]), states.rng_from_array(state["rng"])
        self._publish()

    def _parts(self) -> dict[str, states.Stateful]:
        return {"shift": self._shift, "queue": self._queue}

    def status(self) -> dict[str, Any]:
        return {
            "steps": self._updates,
            "loss": None if np.isnan(self._average) else self._average,
            "moved": self._pass.name,
            "parameters": self._pass.parameters,
        }


def _between(one: Outputs, other: Outputs) -> Outputs:
    """Both sides' embeddings, for their mean."""
    both: Floats = (one.embedding + other.embedding) * np.float32(0.5)
    return Outputs(one.logits, one.features, both)
