"""ZOA: Deng et al., Test-Time Model Adaptation for Quantized Neural Networks, ACM MM 2025.

Two passes a batch: the first answers and is the baseline of a one-sided difference, the second is
perturbed. What was learned on earlier domains is kept in a bank and mixed in.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, ModelInfo
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.activation_shift import ActivationShift
from zotta_edge.runtime.methods.contract import Answer, calibration_of
from zotta_edge.runtime.methods.zoa.bank import Bank
from zotta_edge.runtime.methods.zoa.domain import DomainChange
from zotta_edge.runtime.methods.zoa.settings import ZoaSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.statistics import Queue, Source, moments
from zotta_edge.runtime.zeroth.estimator import draw
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.parameters import Parameters


class Zoa:
    """Learns one delta of the affines a domain, and a mixture of those of earlier domains.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="zoa")
    >>> model.predict(digits).adapted, model.status()["domains"]
    (True, 1)
    """

    moves_affines: ClassVar[bool] = True

    def __init__(self, engine: Engine, settings: ZoaSettings, events: Events) -> None:
        calibration = calibration_of(engine.info)
        self._engine, self._settings = engine, settings
        self._parameters = Parameters(engine.info, engine.chosen)
        self._source = Source.of(calibration)
        self._queue = Queue(settings.queue, len(self._source.mean))
        self._bank = Bank(len(self._parameters), settings)
        self._domain = DomainChange(engine, settings)
        self._shift = ActivationShift(engine, calibration, settings)
        self.reset()

    @classmethod
    def layers(cls, info: ModelInfo, settings: ZoaSettings) -> tuple[int, ...]:
        """Blocks 1 to 8 of 12: a layer after the last block holds the final norm alone."""
        first, depth = settings.zoa_first, len(info.layers) - 1
        last = max(first, round(settings.zoa_last / settings.zoa_depth * depth))
        movable = [index for index, layer in enumerate(info.layers) if layer.norms]
        return tuple(index for index in movable if first <= index <= last) or tuple(movable)

    def reset(self) -> None:
        self._delta: Floats = np.zeros(len(self._parameters), np.float32)
        self._updates = self._domains = 0
        self._rng = np.random.default_rng(self._settings.seed)
        for part in self._parts().values():
            part.reset()
        self._theta = self._parameters.source
        self._publish()

    def predict(self, images: Floats) -> Answer:
        if self._domain.observe(images):
            self._begin_domain()
        batch = Batch.of(self._engine, self._parameters, images)
        outputs = batch(self._theta)
        logits = self._shift.logits(outputs)
        self._step(batch, self._loss(outputs))
        self._shift.observe(outputs)
        self._queue.push(outputs)
        self._publish()
        return Answer(logits, True, None)

    def read(self, images: Floats) -> Answer:
        theta, shift = self._known  # taken once: a call beside this one may replace it
        batch = Batch.of(self._engine, self._parameters, images)
        return Answer(shift.logits(batch(theta)), False, None)

    def _publish(self) -> None:
        self._known = self._theta, copy(self._shift)

    def _begin_domain(self) -> None:
        self._bank.add(self._delta)
        self._delta = np.zeros_like(self._delta)
        self._theta = self._moved(self._bank.alphas[: self._bank.used], self._delta)
        self._shift.reset()
        self._domains += 1

    def _moved(self, alphas: Floats, delta: Floats) -> Floats:
        return self._parameters.source + self._bank.mixed(alphas) + delta

    def _loss(self, outputs: Outputs) -> float:
        """mean H + 30 (mean (mu - mu_S)^2 + mean (sigma - sigma_S)^2)."""
        features, entropy = self._queue.beside(outputs)
        mean, std = moments(features)
        distance = np.square(mean - self._source.mean).mean()
        if len(features) > 1:  # one sample has no spread
            distance += np.square(std - self._source.std).mean()
        return float(entropy.mean() + self._settings.zoa_alignment * distance)

    def _step(self, batch: Batch, baseline: float) -> None:
        """One perturbed pass moves the delta and the mixture at once."""
        own, alphas = self._settings, self._bank.alphas[: self._bank.used]
        u, credit = draw("segmented-uniform", len(self._delta), self._rng)
        u_mix, credit_mix = draw("segmented-uniform", len(alphas), self._rng)
        perturbed = self._moved(
            alphas + np.float32(own.zoa_mix_perturbation) * u_mix,
            self._delta + np.float32(own.zoa_perturbation) * u,
        )
        rise = self._loss(batch(perturbed)) - baseline
        gradient = one_sided(rise, own.zoa_perturbation, credit)
        gradient_mix = one_sided(rise, own.zoa_mix_perturbation, credit_mix)
        self._delta = _descend(self._delta, gradient, own.zoa_rate, own.zoa_decay)
        kept = self._bank.alphas.copy()
        mixed = _descend(alphas, gradient_mix, own.zoa_mix_rate, own.zoa_mix_decay)
        kept[: self._bank.used] = mixed
        self._bank.alphas = kept
        self._theta = self._moved(kept[: self._bank.used], self._delta)
        self._updates += 1

    def state(self) -> dict[str, NDArray[Any]]:
        own = {
            "delta": self._delta,
            "theta": self._theta,
            "updates": np.array([self._updates]),
            "domains": np.array([self._domains]),
            "rng": states.rng_to_array(self._rng),
        }
        return own | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self._delta, self._theta = state["delta"], state["theta"]
        self._updates, self._domains = int(state["updates"][0]), int(state["domains"][0])
        self._rng = states.rng_from_array(state["rng"])
        self._publish()

    def _parts(self) -> dict[str, states.Stateful]:
        return {
            "bank": self._bank,
            "domain": self._domain,
            "shift": self._shift,
            "queue": self._queue,
        }

    def status(self) -> dict[str, Any]:
        moved = np.linalg.norm(self._theta - self._parameters.source)
        return {
            "steps": self._updates,
            "domains": self._domains + 1,
            "distance": float(moved / np.linalg.norm(self._parameters.source)),
            "layers": list(self._engine.chosen),
            "parameters": len(self._parameters),
        }


def one_sided(rise: float, size: float, credit: Floats) -> Floats:
    """g = (L(theta + c u) - L(theta)) / (c u), elementwise; credit is 1 / u.

    Exact in expectation for a quadratic: the second order is odd in u, and u is symmetric.
    """
    return np.asarray(rise / size * credit, np.float32)


def _descend(values: Floats, gradient: Floats, rate: float, decay: float) -> Floats:
    return np.asarray(values - rate * (gradient + decay * values), np.float32)
