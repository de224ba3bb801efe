"""Channel-moment alignment: every channel's mean and spread back to where the source has them.

The pass that answers a batch normalizes each exposed channel by the stream's running moments, this
batch included, as far as they differ from the source's by more than sampling and an uneven mix of
classes explain (graph.py has the equations). So it works from the first image on, in batches of
any size, and does nothing to a stream like the source. BN-Adapt (Schneider et al., 2020), alpha-BN,
TTN and LeanTTA are its relatives. Images of a drifted stream go through the filter that brings them
closest to the source, as in primed alignment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.format.moments import SourceMoments
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events, StreamChanged
from zotta_edge.runtime.methods.contract import Answer, calibration_of
from zotta_edge.runtime.methods.moments.passes import Begun, MomentPasses
from zotta_edge.runtime.methods.moments.running import AT_SOURCE, RunningMoments, Share
from zotta_edge.runtime.methods.moments.settings import MomentSettings
from zotta_edge.runtime.methods.moments.settling import Settled, Settling
from zotta_edge.runtime.methods.moments.stream import MomentStream
from zotta_edge.runtime.methods.primed.budget import PassBudget
from zotta_edge.runtime.methods.primed.filter_choice import FilterChoice
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.class_memory import ClassMemory
from zotta_edge.runtime.watch.collapse import Collapse
from zotta_edge.runtime.watch.guard import GuardCounts
from zotta_edge.runtime.watch.statistics import Doubles


@dataclass(frozen=True)
class _Published:
    """What readers see, replaced as a whole."""

    running: Floats
    noise: float
    settled: Settled | None
    filter: str
    drift: float


class Moments:
    """One pass a batch, in which the channels are aligned by all that was seen so far."""

    moves_affines: ClassVar[bool] = False
    remembers_classes: ClassVar[bool] = True

    def __init__(self, engine: Engine, settings: MomentSettings, events: Events) -> None:
        info, calibration, source = engine.info, calibration_of(engine.info), moments_of(engine)
        self._engine, self._settings, self._events = engine, settings, events
        self._scored = not info.outputs  # else there are no classes to watch
        self._passes = MomentPasses(engine)
        self._running = RunningMoments(source, info.classes, settings)
        self._settling = Settling(self._passes, source, settings)
        self._stream = MomentStream(source, settings)
        self._filters = Filters(info.preprocessing, calibration.pixels)
        self._choice = FilterChoice(self._filters, calibration, settings, events)
        self._budget = PassBudget(settings)
        self._memory = ClassMemory(info.classes, settings, events)
        self._collapse = Collapse(info.classes, settings, events)
        self._counts = GuardCounts(events)
        self.reset()

    def reset(self) -> None:
        for part in self._parts().values():
            part.reset()
        self._noise = AT_SOURCE
        self._publish()

    def predict(self, images: Floats) -> Answer:
        self._budget.earn(len(images))
        begun, weights = self._seen(images)
        outputs, instance = self._answered(begun, weights)
        if self._trial_due(instance, weights) and self._tried(images[weights > 0.5]):
            begun = self._refiltered(images, weights)
            outputs, instance = self._answered(begun, weights)
        self._running.observe(instance, weights)
        self._settling.observe(len(images), self._running, self._noise)
        adapted = self._noise < AT_SOURCE
        if self._collapse.happened(outputs.logits, not adapted, lambda: self._plain(images).logits):
            self._choice.reset()
            self._forget()
        known = self._publish()
        logits = self._memory(outputs.logits, weights)
        return Answer(logits, adapted, known.drift, others=outputs.others)

    def read(self, images: Floats) -> Answer:
        known = self._published  # taken once: a call beside this one may replace it
        begun = self._passes.begin(self._filters(known.filter, images))
        if known.settled:
            outputs, _ = self._passes.finish_settled(begun, known.settled.cone)
        else:
            unseen = Share(1.0, np.zeros(len(images)), 0.0)
            outputs, _ = self._passes.finish(begun, known.running, unseen, known.noise)
        return Answer(outputs.logits, False, known.drift, others=outputs.others)

    def _seen(self, images: Floats) -> tuple[Begun, Doubles]:
        """The batch through the right filter, and how new each of its images is."""
        filtered = self._choice.apply(images)
        fits = self._choice.still_fits(images, filtered)
        begun = self._passes.begin(filtered)
        weights = self._stream.weigh(begun.first)
        if self._stream.changed(begun.first, weights) or not fits:
            self._events.report(StreamChanged(self._stream.drift.score))
            begun = self._anew(images, begun) if self._choice.name != AS_IS else begun
            self._choice.reset()
            self._stream.begin(begun.first, weights, 0)  # some may be of the stream before
            self._forget()
        return begun, weights

    def _refiltered(self, images: Floats, weights: Doubles) -> Begun:
        """The batch through another filter, as the beginning of its stream."""
        self._budget.spend(len(images))
        begun = self._passes.begin(self._choice.apply(images))
        self._stream.begin(begun.first, weights, min(len(images), self._stream.unchanged))
        self._forget()
        return begun

    def _anew(self, images: Floats, before: Begun) -> Begun:
        self._budget.spend(self._passes.stem_share * len(before.images))
        return self._passes.begin(images)

    def _trial_due(self, instance: Floats, weights: Doubles) -> bool:
        choice = self._choice
        if not (self._scored and self._settings.filters) or choice.settled:
            return False
        if self._running.unevenness > self._settings.filter_unevenness:
            return False
        far = self._running.distance_with(instance, weights) > self._settings.drift_threshold
        if not far and choice.name == AS_IS:
            return False
        credit = self._budget.credit
        first = choice.before_first_trial and credit > 0
        return first or choice.trying or credit - choice.reserve > 0

    def _tried(self, novel: Floats) -> bool:
        return len(novel) > 0 and self._choice.try_on(novel, self._plain)

    def _plain(self, images: Floats) -> Outputs:
        """The file's own answer."""
        self._budget.spend(len(images))
        return self._engine.cone(self._engine.stem(images), {})

    def _answered(self, begun: Begun, weights: Doubles) -> tuple[Outputs, Floats]:
        """Answer, and once more where the answers are of fewer classes than was believed."""
        share = self._running.share_of(weights)
        answer = self._answered_once(begun, weights, share)
        self._running.observe_answers(answer[0].logits, weights)
        believed, self._noise = self._noise, self._running.noise(share)
        if self._settling.now:
            believed = self._settling.now.noise
        if self._noise > believed + self._settings.moment_again and self._budget.credit > 0:
            self._settling.reset()
            self._budget.spend((1 - self._passes.stem_share) * len(begun.images))
            answer = self._passes.finish(begun, self._running.mean, share, self._noise)
        return answer

    def _answered_once(
        self, begun: Begun, weights: Doubles, share: Share
    ) -> tuple[Outputs, Floats]:
        if self._settling.now:
            return self._passes.finish_settled(begun, self._settling.now.cone)
        first = self._scored and self._running.knows_no_answers
        if first:  # misaligned answers would hide how few classes there are
            source = self._engine.cone(self._engine.stem(begun.images), {})
            self._running.observe_answers(source.logits, weights)
        self._noise = self._running.noise(share)
        if first:  # and the source's are of few classes where it sees badly
            self._running.forget_answers()
        return self._passes.finish(begun, self._running.mean, share, self._noise)

    def _forget(self) -> None:
        """Drop what was learned of another stream, or through another filter."""
        self._running.reset()
        self._settling.reset()
        self._noise = AT_SOURCE

    def _publish(self) -> _Published:
        drift, settled = self._stream.drift.score, self._settling.now
        known = _Published(self._running.mean, self._noise, settled, self._choice.name, drift)
        self._published = known
        return known

    def state(self) -> dict[str, NDArray[Any]]:
        return {"noise": np.array([self._noise])} | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self._noise = float(state["noise"][0])
        self._publish()

    def _parts(self) -> dict[str, states.Stateful]:
        return {
            "budget": self._budget,
            "stream": self._stream,
            "filter": self._choice,
            "running": self._running,
            "settling": self._settling,
            "memory": self._memory,
            "collapse": self._collapse,
            "counts": self._counts,
        }

    def status(self) -> dict[str, Any]:
        return {
            "phase": "adapting" if self._noise < AT_SOURCE else "watching",
            "drift": self._stream.drift.score,
            "significance": self._stream.drift.significance,
            "noise": min(self._noise, 1e6),
            "settled": self._settling.now is not None,
            "filter": self._choice.name,
            "class_memory": self._memory.status(),
            "guard": self._counts.to_dict(),
        }


def moments_of(engine: Engine) -> SourceMoments:
    moments = engine.info.moments
    if moments is None:
        raise ZottaError(
            "the model does not hold its source's channel moments: run "
            "`zotta-edge calibrate MODEL --source DIR --prime`, or use another method"
        )
    return moments
