"""Primed alignment: the gain of zeroth-order steps for the price of plain inference.

Calibration measured J = dv / dtheta, how the pooled features move with the norms' shifts. So the
pass that answers a batch also tells where to move: were the shifts the source's, the mean features
would be r = mu(theta) - t J (theta - theta_S) - mu_S off, and damped Gauss-Newton takes that back,

    theta <- theta_S - (J^T J + lambda s I)^-1 J^T r,      s = trace(J^T J) / d.

What is still off where the classifier reads is taken out there: logits = head(embedding - delta).
Before all that, images of a drifted stream go through the filter that brings them closest to the
source, if one does.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, Prime
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.forward import Batch
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.io.preprocessing import mirrored
from zotta_edge.runtime.methods.contract import Answer, calibration_of
from zotta_edge.runtime.methods.primed.filter_choice import Correction
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters
from zotta_edge.runtime.methods.primed.gauss_newton import GaussNewton
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.state import file as states
from zotta_edge.runtime.watch.drift import Drift, RunningMean
from zotta_edge.runtime.watch.guard import Guard
from zotta_edge.runtime.watch.statistics import Doubles, Source, log_softmax, pooled
from zotta_edge.runtime.zeroth.parameters import Parameters

log = logging.getLogger(__name__)

_FURTHEST = 0.5  # of |theta_S|: no drift that one can adapt to has asked for half of it
_TRUST = (
    0.5  # in J's word on how far the features have moved: less than 1 bounds what an error adds
)
_LARGE = 0.01  # of |theta_S|: a smaller step is not worth answering again
_BELIEF = 8  # power of sureness: fog and low contrast leave 0.6-0.7 of it, to count next to nothing
_PARTS = 4  # of a batch that are mirrored one after the other, to need hardly any more memory
_SAVINGS = 256.0  # passes: what a long quiet stream did not need is not all spent on the next one
_ALIKE = 0.7  # of the source images: a model that says less often the same of a mirror image minds


class _Known(NamedTuple):
    """What an answer needs to know of the stream."""

    theta: Floats
    delta: Floats
    filter: str


class Primed:
    """One pass a batch: answer, look how far off it was, move.

    r is a running mean over about `window` samples, whatever the size of the batches, shrunk by the
    share of it that sampling or an uneven mix of classes explains: a stream like the source moves
    nothing. A move that changes much is worth a second answer, where the `budget` allows it. When
    the layers before the affines say that another stream has begun, all starts from the source
    again.
    """

    moves_affines: ClassVar[bool] = True

    def __init__(self, engine: Engine, settings: Settings) -> None:
        calibration = calibration_of(engine.info)
        self._engine, self._settings = engine, settings
        self._parameters = Parameters(engine.info, engine.chosen)
        prime = _prime_of(engine)
        self._first = min(prime.layers)  # no layer before it moves
        self._source = Source.of(calibration, self._first)
        self._newton = GaussNewton(prime, settings.damping)
        self._mirrors = settings.budget >= 2 and prime.mirrored >= _ALIKE
        self._head = Head.open(engine).weights()[0]  # [E, class]
        self._embedding = calibration.embedding_mean
        self._embedding_variance = np.square(calibration.embedding_std, dtype=np.float64)
        self._filters = Filters(engine.info.preprocessing, calibration.pixels)
        self._correction = Correction(self._filters, calibration, settings)
        self._guard = Guard(settings, self._parameters.source, engine.info.classes)
        self._drift = Drift(Source.of(calibration), engine.chosen, settings.drift_window)
        self._shift = RunningMean(settings.window, len(self._source.mean))  # r
        self._offset = RunningMean(settings.window, len(self._embedding))  # of the embedding
        self._answers = RunningMean(settings.window, engine.info.classes + 1)  # p_i, sum p_i^2
        self.reset()

    def reset(self) -> None:
        self._theta = self._parameters.source
        self._steps = 0
        self._unchanged = self._settings.drift_window  # samples since the stream changed
        self._credit = 0.0  # passes x samples that may be spent
        for part in self._parts().values():
            part.reset()
        self._publish()

    def read(self, images: Floats) -> Answer:
        known = self._known  # taken at once: a call beside this one may be about to move
        outputs = self._batch(self._filters(known.filter, images))(known.theta)
        logits = outputs.logits
        if self._turns(known):
            logits = self._both_ways(logits, images, known)
        return Answer(logits - known.delta @ self._head, False, self._drift.score)

    def predict(self, images: Floats) -> Answer:
        before, source = self._known, self._parameters.source
        self._earn(len(images))
        batch = self._look(images)
        outputs = batch(self._theta)
        if not self._drift.untouched_layers:
            self._drift.observe(outputs.features)
        self._move(outputs)
        if self._spare(len(images)) > 0 and self._large(before.theta):
            self._credit -= self._engine.cone_share * len(images)
            outputs = batch(self._theta)
        self._offset.add(outputs.embedding - self._embedding)
        self._publish()
        known = self._known
        logits = outputs.logits
        if self._turns(known) and self._credit > 0:
            self._credit -= len(images)
            logits = self._both_ways(logits, images, known)
        logits = logits - known.delta @ self._head
        if self._guard.collapsed(logits, self._theta is source, lambda: batch(source).logits):
            self._return_to_source()
            self._publish()
        adapted = self._known.theta is not before.theta or self._known.filter != before.filter
        return Answer(logits, adapted, self._drift.score)

    def _publish(self) -> None:
        self._known = _Known(self._theta, self._delta(), self._correction.name)

    def _batch(self, images: Floats) -> Batch:
        return Batch.of(self._engine, self._parameters, images)

    def _look(self, images: Floats) -> Batch:
        """The batch as it is to be seen, from the source again when another stream begins."""
        right, batch, features = self._filtered(images)
        if not right or self._changed(features):
            log.info("changed: another stream has begun, drift %.2f", self._drift.score)
            filtered = self._correction.name
            self._return_to_source()
            if filtered != AS_IS:
                batch, features = self._filtered_again(images)
            self._begin(features, 0)  # some of the batch may be of the stream before
        if self._another_filter(images):
            self._forget()
            batch, features = self._filtered_again(images)
            self._begin(features, min(len(images), self._unchanged))
        return batch

    def _filtered(self, images: Floats) -> tuple[bool, Batch, list[Floats]]:
        """Whether the filter is still right, the batch, and features that theta cannot reach."""
        seen = self._filters(self._correction.name, images)  # not kept: a copy of the batch
        right, batch = self._correction.still_right(images, seen), self._batch(seen)
        untouched = self._engine.info.layers[: self._drift.untouched_layers]
        return right, batch, [batch.stem.outputs[layer.feature] for layer in untouched]

    def _filtered_again(self, images: Floats) -> tuple[Batch, list[Floats]]:
        self._credit -= (1 - self._engine.cone_share) * len(images)
        _, batch, features = self._filtered(images)
        return batch, features

    def _begin(self, features: Sequence[Floats], known: int) -> None:
        """From here on, the stream is compared with what it is like now, by `known` samples."""
        if features:
            self._drift.begin(features)
            self._unchanged = known

    def _changed(self, features: Sequence[Floats]) -> bool:
        if not features:  # all layers move with theta, and say nothing of the stream alone
            return False
        self._drift.observe(features)
        self._unchanged += len(features[0])
        if self._unchanged <= self._settings.drift_window:
            self._drift.remember()  # a small batch alone says little of what the stream is like now
            return False
        return self._drift.change >= self._settings.drift_threshold

    def _return_to_source(self) -> None:
        self._correction.reset()
        self._forget()

    def _forget(self) -> None:
        """What was learned of the stream through another filter, or of another stream."""
        self._theta = self._parameters.source
        self._shift.reset()
        self._offset.reset()
        self._answers.reset()

    def _earn(self, images: int) -> None:
        self._credit = min(self._credit + (self._settings.budget - 1) * images, _SAVINGS)

    def _spare(self, images: int) -> float:
        """Credit that neither the batch's mirror nor the next trial of filters needs."""
        return self._credit - self._correction.reserve - (images if self._mirrors else 0)

    def _another_filter(self, images: Floats) -> bool:
        """Try the filters on some images of a drifted stream; whether another one is better."""
        filtered, settings = self._correction.name, self._settings
        drifted = self._drift.significance >= settings.drift_threshold or filtered != AS_IS
        wanted = settings.filters and drifted and not self._correction.settled
        first = self._correction.untried and self._credit > 0  # a mirror can wait for it
        if not wanted or not (first or self._correction.trying or self._spare(len(images)) > 0):
            return False

        def answer(few: Floats) -> Outputs:
            self._credit -= len(few)
            return self._batch(few)(self._parameters.source)

        self._correction.try_on(images, answer)
        return self._correction.name != filtered

    def _move(self, outputs: Outputs) -> None:
        source = self._parameters.source
        answers = np.exp(log_softmax(outputs.logits))
        self._answers.add(np.c_[answers, np.square(answers).sum(axis=1)])
        so_far = (self._theta - source)[self._parameters.shifts]
        moved = np.float32(_TRUST) * self._newton.effect(so_far)
        features = pooled(outputs, self._first)
        self._shift.add(features - self._source.mean.astype(np.float32) - moved)
        before, off = self._phase, self._significant()
        if off.any():
            theta = source.copy()
            theta[self._parameters.shifts] += self._newton.step(off)
            self._theta = self._guard.no_further(theta, _FURTHEST)
            self._steps += 1
        else:
            self._theta = source
        if self._phase != before:
            log.info("%s -> %s: drift %.2f", before, self._phase, self._drift.score)

    def _significant(self) -> Doubles:
        """r, each layer's shrunk by the share of it that sampling explains."""
        variance = self._noise(self._shift) * np.square(self._source.std)
        ends = self._source.ends[:-1]
        layers = zip(np.split(self._shift.mean, ends), np.split(variance, ends), strict=True)
        return np.concatenate([shrunk(shift, noise) for shift, noise in layers])

    def _delta(self) -> Floats:
        """How far the embedding is off, as far as it is significant."""
        noise = self._noise(self._offset) * self._embedding_variance
        return shrunk(self._offset.mean, noise).astype(np.float32)

    def _turns(self, known: _Known) -> bool:
        return self._mirrors and known.theta is not self._parameters.source

    def _both_ways(self, logits: Floats, images: Floats, known: _Known) -> Floats:
        """The mean with the answer to the mirrored batch."""
        turned = []
        for part in np.array_split(images, min(_PARTS, len(images))):
            other = mirrored(self._filters(known.filter, part), self._engine.info.preprocessing)
            turned.append(self._batch(other)(known.theta).logits)
        return (logits + np.concatenate(turned)) * np.float32(0.5)

    def _noise(self, running: RunningMean) -> float:
        """Variance of a running mean less the source's, in units of one sample's variance."""
        return running.variance + 1 / self._source.samples + self._one_sided()

    def _one_sided(self) -> float:
        """How far the mix of classes is from even: 0, up to 1 where all answers are one class.

        The mean features of a few classes are off by up to sigma_S without any drift. For the mean
        answer p, sum p^2 is 1 / classes in an even mix, and sampling adds 1 / n. Drift, too, makes
        answers alike, but it also makes them unsure: those with sum p_i^2 near 1 are believed.
        """
        mean, sure = self._answers.mean[:-1], self._answers.mean[-1]
        even = 1 / len(mean) + self._answers.variance
        return float(max(0.0, np.square(mean).sum() - even) * sure**_BELIEF)

    @property
    def _phase(self) -> str:
        return "watching" if self._theta is self._parameters.source else "adapting"

    def _large(self, before: Floats) -> bool:
        source = self._parameters.source
        return bool(np.linalg.norm(self._theta - before) > _LARGE * np.linalg.norm(source))

    def state(self) -> dict[str, NDArray[Any]]:
        own = {
            "theta": self._theta,
            "numbers": np.array([self._steps, self._unchanged, self._credit]),
        }
        return own | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        steps, unchanged, self._credit = state["numbers"].tolist()
        self._steps, self._unchanged = int(steps), int(unchanged)
        source = self._parameters.source
        self._theta = source if np.array_equal(state["theta"], source) else state["theta"]
        self._publish()

    def _parts(self) -> dict[str, states.Stateful]:
        return {
            "shift": self._shift,
            "offset": self._offset,
            "correction": self._correction,
            "answers": self._answers,
            "guard": self._guard,
            "drift": self._drift,
        }

    def status(self) -> dict[str, Any]:
        return {
            "phase": self._phase,
            "steps": self._steps,
            "drift": self._drift.score,
            "significance": self._drift.significance,
            "distance": self._guard.distance(self._theta),
            "filter": self._correction.name,
            "guard": dict(self._guard.events),
            "layers": list(self._engine.chosen),
            "parameters": len(self._parameters),
        }


def shrunk(shift: Doubles, variance: Doubles) -> Doubles:
    """A shift, less the share of its length that its sampling variance explains (James-Stein)."""
    length = float(np.square(shift).sum())
    kept: Doubles = shift * max(0.0, 1 - float(variance.sum()) / length) if length else shift
    return kept


def _prime_of(engine: Engine) -> Prime:
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
