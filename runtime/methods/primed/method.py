"""Primed alignment: the gain of zeroth-order steps for the price of plain inference.

Calibration measured J = dv / dtheta, how the pooled features move with the norms' shifts. So the
pass that answers a batch also tells where to move: were the shifts the source's, the mean features
would be r = mu(theta) - t J (theta - theta_S) - mu_S off, and damped Gauss-Newton takes that back,

    theta <- theta_S - (J^T J + lambda s I)^-1 J^T r,      s = trace(J^T J) / d.

What is still off where the classifier reads is taken out there: logits = head(embedding - delta).
Before all that, images of a drifted stream go through the filter that brings them closest to the
source, if one does.

>>> from zotta_edge import AdaptiveModel
>>> from zotta_edge.models import embedded
>>> digits = embedded.digits(64) // 4 + 128  # in a haze
>>> model = AdaptiveModel.load(embedded.MODEL, method="primed")
>>> model.predict(digits).adapted
True
>>> model.status()["filter"]
'contrast'
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, Prime
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.events import Events, PhaseChanged
from zotta_edge.runtime.methods.contract import Answer, calibration_of
from zotta_edge.runtime.methods.primed.alignment import Alignment
from zotta_edge.runtime.methods.primed.budget import PassBudget
from zotta_edge.runtime.methods.primed.class_mix import ClassMix
from zotta_edge.runtime.methods.primed.embedding import EmbeddingCorrection
from zotta_edge.runtime.methods.primed.filters import AS_IS
from zotta_edge.runtime.methods.primed.lens import Lens
from zotta_edge.runtime.methods.primed.mirror import Mirror
from zotta_edge.runtime.methods.primed.own_lens import OwnLens
from zotta_edge.runtime.methods.primed.published import Published
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.view import View
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.class_memory import ClassMemory
from zotta_edge.runtime.watch.collapse import Collapse
from zotta_edge.runtime.watch.guard import GuardCounts
from zotta_edge.runtime.watch.trust_region import Distance
from zotta_edge.runtime.zeroth.parameters import Parameters


class Primed:
    """One pass a batch: answer, measure how far off the features are, move.

    A stream like the source moves nothing. After a large move the batch is answered again, where
    the budget allows it. Another stream, or another filter, starts from the source.
    """

    moves_affines: ClassVar[bool] = True
    remembers_classes: ClassVar[bool] = True

    def __init__(self, engine: Engine, settings: PrimedSettings, events: Events) -> None:
        info, calibration, prime = engine.info, calibration_of(engine.info), prime_of(engine)
        parameters = Parameters(info, engine.chosen)
        distance = Distance(parameters.source, settings, events)
        self._engine, self._parameters, self._events = engine, parameters, events
        self._signed = settings.signatures and info.signatures is not None
        self._alone = settings.episodic and self._signed
        self._budget = PassBudget(settings)
        self._lens = self._opened_lens(prime, settings)
        shift = self._lens.stem_shift
        if self._signed:
            settings = replace(settings, sureness_power=settings.own_sureness)
        self._mix = ClassMix(info.classes, calibration.samples, shift, settings)
        self._alignment = Alignment(prime, calibration, parameters, self._mix, distance, settings)
        if info.outputs:  # no class scores: nothing to correct
            head = np.zeros((len(calibration.embedding_mean), info.classes), np.float32)
        else:
            head, _ = Head.open(engine).weights()
        self._embedding = EmbeddingCorrection(head, calibration, self._mix, settings)
        self._mirror = Mirror(prime, self._lens, parameters.source, settings)
        self._memory = ClassMemory(info.classes, settings, events)
        self._collapse = Collapse(info.classes, settings, events)
        self._counts = GuardCounts(events)
        self.reset()

    def reset(self) -> None:
        for part in self._parts().values():
            part.reset()
        self._publish()

    def predict(self, images: Floats) -> Answer:
        if self._alone:  # each image by its own signature, no stream
            return self.read(images)
        before = self._published
        self._budget.earn(len(images))
        reserve = self._mirror.reserve(len(images))
        view = self._lens(images, reserve, self._mix.unevenness)
        if view.begins_anew:
            self._forget()
        outputs = view.answer(self._alignment.theta)
        self._move(outputs, view)
        if self._can_answer_again(len(images)) and self._alignment.is_large_step(before.theta):
            self._budget.spend(self._engine.cone_share * len(images))
            outputs = view.answer(self._alignment.theta)
        if not self._memory.active:
            self._embedding.observe(outputs, view.weights, view.deltas)
        known = self._publish()
        mirror = self._mirror.wanted(known) and self._budget.credit > 0
        self._budget.spend(len(images) if mirror else 0)
        logits = self._logits(outputs, images, known, view.deltas, mirror)
        if self._collapsed(logits, view):
            known = self._publish()
        adapted = known.theta is not before.theta or known.filter != before.filter
        answers = self._memory(logits, view.weights)
        as_the_source = self._alignment.at_source and known.filter == AS_IS
        own = bool(np.any(view.explained))
        moved = own or not as_the_source or answers is not logits
        return Answer(answers, adapted, known.drift, moved, outputs.features, outputs.others)

    def read(self, images: Floats) -> Answer:
        known = self._published  # taken once: a call beside this one may replace it
        view = self._lens.read(images, known)
        outputs = view.answer(known.theta)
        logits = self._logits(outputs, images, known, view.deltas, self._mirror.wanted(known))
        return Answer(logits, False, known.drift, others=outputs.others)

    def _opened_lens(self, prime: Prime, settings: PrimedSettings) -> Lens | OwnLens:
        engine, parameters, events = self._engine, self._parameters, self._events
        signatures = engine.info.signatures
        if signatures is None or not settings.signatures:
            return Lens(engine, parameters, self._budget, settings, events)
        return OwnLens(engine, signatures, prime, parameters, self._budget, settings, events)

    def _move(self, outputs: Outputs, view: View) -> None:
        self._lens.watch.observe_adapted(outputs)
        if self._memory.active:  # a run of one class is a mix, and no drift
            return
        self._mix.observe(outputs.logits, view.weights)
        before = self._alignment.phase
        self._alignment.move(outputs, view.weights, view.explained)
        after, drift = self._alignment.phase, self._lens.watch.drift.score
        if after != before:
            self._events.report(PhaseChanged(before, after, f"drift {drift:.2f}"))

    def _logits(
        self,
        outputs: Outputs,
        images: Floats,
        known: Published,
        own: Floats | float,
        mirror: bool,
    ) -> Floats:
        logits = self._mirror.averaged(outputs.logits, images, known) if mirror else outputs.logits
        return self._embedding.corrected(logits, known.delta + own)

    def _publish(self) -> Published:
        name, drift = self._lens.filter, self._lens.watch.drift.score
        delta = self._embedding.delta()
        if self._alignment.at_source:  # what no layer shows is content
            delta = np.zeros_like(delta)
        known = Published(self._alignment.theta, delta, name, drift, self._lens.common)
        self._published = known
        return known

    def _collapsed(self, logits: Floats, view: View) -> bool:
        at_source, source = self._alignment.at_source, self._parameters.source
        collapsed = self._collapse.happened(logits, at_source, lambda: view.answer(source).logits)
        if collapsed:
            self._lens.forget()
            self._forget()
        return collapsed

    def _forget(self) -> None:
        """Drop what was learned of another stream, or through another filter."""
        self._alignment.forget()
        self._embedding.reset()
        self._mix.reset()

    def _can_answer_again(self, images: int) -> bool:
        reserve = self._lens.reserve + self._mirror.reserve(images)
        owed = self._engine.cone_share * images if self._signed else 0.0
        return self._budget.credit - reserve > owed

    def state(self) -> dict[str, NDArray[Any]]:
        return states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self._publish()

    def _parts(self) -> dict[str, states.Stateful]:
        return {
            "budget": self._budget,
            "lens": self._lens,
            "mix": self._mix,
            "alignment": self._alignment,
            "embedding": self._embedding,
            states.row("memory", "classes"): self._memory,
            "collapse": self._collapse,
            "counts": self._counts,
        }

    def status(self) -> dict[str, Any]:
        return {
            "phase": self._alignment.phase,
            "steps": self._alignment.steps,
            "drift": self._lens.watch.drift.score,
            "significance": self._lens.watch.drift.significance,
            "distance": self._alignment.distance,
            "filter": self._lens.filter,
            "class_memory": self._memory.status(),
            "guard": self._counts.to_dict(),
            "layers": list(self._engine.chosen),
            "parameters": len(self._parameters),
        }


def prime_of(engine: Engine) -> Prime:
    prime = engine.info.prime
    if prime is None:
        raise ZottaError(
            "the model is not primed, its features' response to the affines is not known: run "
            "`zotta-edge calibrate MODEL --source DIR --prime`, or use --method zotta"
        )
    if prime.layers != engine.chosen:
        raise ZottaError(
            f"the model is primed for layers {list(prime.layers)}, not {list(engine.chosen)}: "
            "calibrate it for these with --layers and --prime"
        )
    return prime
