"""FOA: Niu et al., Test-Time Model Adaptation with Only Forward Passes, ICML 2024.

CMA-ES searches an input of the model: three prompts of a transformer, or, as for convolutional
networks, a 7x7 filter on the image. Each generation is tried on the batch at hand; the candidate of
lowest loss answers, with its final feature shifted back to the source.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.activation_shift import ActivationShift
from zotta_edge.runtime.methods.contract import Answer, calibration_of
from zotta_edge.runtime.methods.foa.searched import SearchedInput
from zotta_edge.runtime.methods.foa.settings import FoaSettings
from zotta_edge.runtime.methods.foa.strategy import Strategy
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.statistics import Doubles, Queue, Source, moments


class Foa:
    """Tries a generation of candidates on each batch and answers with the best.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> from zotta_edge import Settings
    >>> model = AdaptiveModel.load(embedded.MODEL, Settings(foa_candidates=5), "foa")
    >>> model.predict(digits).adapted, model.status()["searched"]
    (True, 'prompts')
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: FoaSettings, events: Events) -> None:
        calibration = calibration_of(engine.info)
        self._engine, self._settings = engine, settings
        self._pass = SearchedInput(engine, settings.foa_filter_step)
        self._source = Source.of(calibration)
        self._queue = Queue(settings.queue, len(self._source.mean))
        self._strategy = Strategy(self._pass.parameters, settings)
        self._shift = ActivationShift(engine, calibration, settings)
        self.reset()

    def reset(self) -> None:
        for part in self._parts().values():
            part.reset()
        self._best: Doubles | None = None  # None: the model as it is in the file
        self._loss = np.nan
        self._publish()

    def predict(self, images: Floats) -> Answer:
        strategy, candidates = self._strategy.ask()
        best = None if self._best is None else (self._best, self._pass(images, self._best))
        lowest = np.inf if best is None else self._objective(best[1])
        losses = []
        for candidate in candidates:
            outputs = self._pass(images, candidate)
            losses.append(self._objective(outputs))
            if best is None or losses[-1] < lowest:
                best, lowest = (candidate, outputs), losses[-1]
        self._strategy.tell(strategy, candidates, losses)
        assert best is not None  # there are candidates
        self._best, outputs = best
        self._loss = lowest
        logits = self._shift.logits(outputs)
        self._shift.observe(outputs)
        self._queue.push(outputs)
        self._publish()
        return Answer(logits, True, None)

    def read(self, images: Floats) -> Answer:
        best, shift = self._known  # taken once: a call beside this one may replace it
        if best is None:
            outputs = self._engine.cone(self._engine.stem(images), {})
        else:
            outputs = self._pass(images, best)
        return Answer(shift.logits(outputs), False, None)

    def _publish(self) -> None:
        self._known = self._best, copy(self._shift)

    def _objective(self, outputs: Outputs) -> float:
        """sum H + lambda B / 64 (|mu - mu_S|^2 + |sigma - sigma_S|^2)."""
        features, entropy = self._queue.beside(outputs)
        mean, std = moments(features)
        distance = np.square(mean - self._source.mean).sum()
        if len(features) > 1:  # one sample has no spread
            distance += np.square(std - self._source.std).sum()
        settings = self._settings
        weight = settings.foa_alignment * len(features) / settings.foa_reference_batch
        return float(entropy.sum() + weight * distance)

    def state(self) -> dict[str, NDArray[Any]]:
        best = np.zeros(self._pass.parameters) if self._best is None else self._best
        own = {"best": best, "known": np.array([self._best is not None])}
        own |= {"loss": np.array([self._loss])}
        return own | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self._best = state["best"] if state["known"][0] else None
        self._loss = float(state["loss"][0])
        self._publish()

    def _parts(self) -> dict[str, states.Stateful]:
        return {"strategy": self._strategy, "shift": self._shift, "queue": self._queue}

    def status(self) -> dict[str, Any]:
        return {
            "steps": self._strategy.generation,
            "loss": None if np.isnan(self._loss) else self._loss,
            "searched": self._pass.name,
            "parameters": self._pass.parameters,
        }
