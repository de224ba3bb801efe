"""ZOTTA, Algorithm 1: zeroth-order steps on the chosen affines, gated by drift and guarded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events, Returned
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, calibration_of
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.collapse import Collapse, CollapseSettings
from zotta_edge.runtime.watch.drift import Drift
from zotta_edge.runtime.watch.gate import Gate, GateSettings
from zotta_edge.runtime.watch.guard import GuardCounts
from zotta_edge.runtime.watch.rollback import Rollback, RollbackSettings
from zotta_edge.runtime.watch.statistics import Queue, QueueSettings, Source
from zotta_edge.runtime.watch.trust_region import Distance, TrustRegion, TrustSettings
from zotta_edge.runtime.zeroth.estimator import Estimate, EstimatorSettings, estimator_of
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment, ObjectiveSettings
from zotta_edge.runtime.zeroth.optimiser import OptimiserSettings, Sgd
from zotta_edge.runtime.zeroth.parameters import Parameters


@dataclass(frozen=True)
class ZottaSettings(
    MethodSettings,
    EstimatorSettings,
    ObjectiveSettings,
    OptimiserSettings,
    QueueSettings,
    GateSettings,
    TrustSettings,
    RollbackSettings,
    CollapseSettings,
):
    """Defaults are the paper's where it has a value; the gate and the guards are ours."""

    prediction: Literal["after", "mean", "best"] = option(
        "after",
        "answer with a pass after the update (Algorithm 1), or without a further pass with the "
        "mean of the perturbed passes or the one of lowest loss",
    )


class Zotta:
    """Estimates a gradient from perturbed passes, steps, answers; only while drift makes it pay.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> from zotta_edge import Settings
    >>> model = AdaptiveModel.load(embedded.MODEL, Settings(always=True, pairs=1), "zotta")
    >>> model.predict(digits).adapted, model.status()["steps"]
    (True, 1)
    """

    moves_affines: ClassVar[bool] = True

    def __init__(self, engine: Engine, settings: ZottaSettings, events: Events) -> None:
        info = engine.info
        source = Source.of(calibration_of(info))
        self._engine, self._settings, self._events = engine, settings, events
        self._parameters = Parameters(info, engine.chosen)
        self._queue = Queue(settings.queue, len(source.mean))
        weights = settings.weights(info.layers[engine.chosen[0]].kind)
        self._objective = EntropyAndAlignment(source, *weights, settings.reduction, self._queue)
        self._estimator = estimator_of(settings)
        self._optimiser = Sgd(len(self._parameters), settings.momentum)
        self._distance = Distance(self._parameters.source, settings, events)
        cosine = self._estimator.cosine(len(self._parameters), settings.trusted_batch)
        self._region = TrustRegion(self._distance, cosine, settings)
        self._rollback = Rollback(self._region, settings, events)
        self._collapse = Collapse(info.classes, settings, events)
        self._counts = GuardCounts(events)
        self._drift = Drift(source, engine.chosen, settings)
        self._gate = Gate(self._drift, settings, events)
        self.reset()

    def reset(self) -> None:
        self._theta = self._parameters.source
        self._updates = 0
        self._rng = np.random.default_rng(self._settings.seed)
        for part in self._parts().values():
            part.reset()
        self._publish()

    def read(self, images: Floats) -> Answer:
        theta, drift = self._published  # taken once: a call beside this one may replace it
        batch = Batch.of(self._engine, self._parameters, images)
        return Answer(batch(theta).logits, False, drift)

    def _publish(self) -> None:
        self._published = self._theta, self._drift.score

    def predict(self, images: Floats) -> Answer:
        batch = Batch.of(self._engine, self._parameters, images)
        untouched = self._drift.untouched_layers
        if untouched:
            layers = self._engine.info.layers[:untouched]
            self._watch([batch.stem.outputs[layer.feature] for layer in layers])
        adapted = self._gate.open
        outputs = self._adapt(batch) if adapted else batch(self._theta)
        if not untouched:
            self._watch(outputs.features)
        self._queue.push(outputs)
        source = self._parameters.source
        if self._collapse.happened(outputs.logits, self._at_source, lambda: batch(source).logits):
            self._return_to_source()
        self._publish()
        return Answer(outputs.logits, adapted, self._drift.score, features=outputs.features)

    def _watch(self, features: Sequence[Floats]) -> None:
        self._drift.observe(features)
        returned = self._gate.update()
        if returned and self._drift.untouched_layers and not self._at_source:
            self._events.report(Returned(self._drift.score))
            self._return_to_source()

    def _adapt(self, batch: Batch) -> Outputs:
        """Algorithm 1 on one batch: estimate, step, answer."""
        theta, estimates = self._theta, list[Estimate]()
        for _ in range(self._settings.steps):
            self._updates += 1
            rate, size = self._settings.rate(self._updates), self._settings.size(self._updates)
            estimate = self._estimator(batch, theta, self._objective, size, self._rng)
            proposed = self._optimiser.step(theta, estimate.gradient, rate)
            theta = self._region.bounded(theta, proposed, batch.batch)
            estimates.append(estimate)
        self._gate.record(estimates[0].loss, batch.batch)
        if self._settings.prediction == "after":
            return self._accept_or_roll_back(batch, theta, estimates[0])
        self._theta = theta
        return _mean(estimate.outputs) if self._settings.prediction == "mean" else _best(estimate)

    def _accept_or_roll_back(self, batch: Batch, theta: Floats, before: Estimate) -> Outputs:
        """Both objectives come from passes that were made anyway, over the same samples."""
        outputs = batch(theta)
        if self._rollback.accepts(before.loss, self._objective(outputs)):
            self._theta = theta
            return outputs
        self._optimiser.reset()
        return _mean(before.outputs)  # the old theta's answer up to O(c^2), for no further pass

    @property
    def _at_source(self) -> bool:
        return self._theta is self._parameters.source

    def _return_to_source(self) -> None:
        self._theta = self._parameters.source
        self._optimiser.reset()
        self._queue.reset()  # its features were another theta's

    def state(self) -> dict[str, NDArray[Any]]:
        own = {"theta": self._theta, "updates": np.array([self._updates])}
        return own | {"rng": states.rng_to_array(self._rng)} | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self._updates = int(state["updates"][0])
        self._rng = states.rng_from_array(state["rng"])
        self._theta = self._parameters.canonical(state["theta"])
        self._publish()

    def _parts(self) -> dict[str, states.Stateful]:
        return {
            "queue": self._queue,
            "optimiser": self._optimiser,
            "region": self._region,
            "collapse": self._collapse,
            "counts": self._counts,
            "drift": self._drift,
            "gate": self._gate,
        }

    def status(self) -> dict[str, Any]:
        return {
            "phase": self._gate.phase,
            "steps": self._updates,
            "drift": self._drift.score,
            "significance": self._drift.significance,
            "distance": self._distance(self._theta),
            "guard": self._counts.to_dict(),
            "layers": list(self._engine.chosen),
            "parameters": len(self._parameters),
        }


def _mean(passes: Sequence[Outputs]) -> Outputs:
    """The average of perturbed passes: f(theta) up to O(c^2), since u and -u cancel."""
    return Outputs(
        _average([each.logits for each in passes]),
        tuple(_average(layer) for layer in zip(*(each.features for each in passes), strict=True)),
        _average([each.embedding for each in passes]),
    )


def _average(arrays: Sequence[Floats]) -> Floats:
    average: Floats = np.mean(arrays, axis=0, dtype=np.float32)
    return average


def _best(estimate: Estimate) -> Outputs:
    return estimate.outputs[int(np.argmin(estimate.losses))]
