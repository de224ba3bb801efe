"""How the network sees a stream: through the filter it needs, until another stream begins."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events, StreamChanged
from zotta_edge.runtime.io.preprocessing import mirrored
from zotta_edge.runtime.methods.contract import calibration_of
from zotta_edge.runtime.methods.primed.budget import PassBudget
from zotta_edge.runtime.methods.primed.filter_choice import FilterChoice
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters
from zotta_edge.runtime.methods.primed.published import Published
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.stream_watch import StreamWatch
from zotta_edge.runtime.methods.primed.view import View
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.parameters import Parameters


class Lens:
    """For files without signatures: one filter for all images, found by trial.

    Filters every batch, watches the stream, and tries filters when the stream has
    drifted.
    """

    common = None  # images have no filters of their own

    def __init__(
        self,
        engine: Engine,
        parameters: Parameters,
        budget: PassBudget,
        settings: PrimedSettings,
        events: Events,
    ) -> None:
        info, calibration = engine.info, calibration_of(engine.info)
        self._engine, self._parameters, self._budget = engine, parameters, budget
        self._settings, self._events = settings, events
        self._p = info.preprocessing
        self.filters = Filters(info.preprocessing, calibration.pixels)
        self.choice = FilterChoice(self.filters, calibration, settings, events)
        self.watch = StreamWatch(info, engine.chosen, settings)

    def reset(self) -> None:
        self.choice.reset()
        self.watch.reset()

    @property
    def filter(self) -> str:
        return self.choice.name

    @property
    def reserve(self) -> float:
        return self.choice.reserve

    def forget(self) -> None:
        """Drop the filter: its answers were all alike."""
        self.choice.reset()

    def read(self, images: Floats, known: Published, mirror: bool = False) -> View:
        """The batch by what is published, seen in a mirror if asked for; changes nothing."""
        filtered = self.filters(known.filter, images)
        seen = mirrored(filtered, self._p) if mirror else filtered
        return View(self.batch(seen), np.zeros(len(images)))

    def __call__(self, images: Floats, reserve: float, unevenness: float) -> View:
        """The batch through the right filter, its weights, and whether to forget what was learned.

        Weights say how new each image is. What was learned no longer holds when another stream
        has begun, or when another filter was chosen. `reserve` are passes that a later trial of
        filters must leave in the budget, `unevenness` how one-sided the classes were so far.
        """
        batch, features, fits = self._filtered(images)
        weights = self.watch.weigh(features, len(images))
        changed = not fits or self.watch.changed(features, weights)
        if changed:
            self._events.report(StreamChanged(self.watch.drift.score))
            was_filtered = self.choice.name != AS_IS
            self.choice.reset()
            if was_filtered:
                batch, features = self._filtered_again(images)
            self.watch.begin(features, weights, 0)  # some of the batch may be of the stream before
        refiltered = self._trial_due(reserve, unevenness) and self._tried(images[weights > 0.5])
        if refiltered:
            batch, features = self._filtered_again(images)
            self.watch.begin(features, weights, min(len(images), self.watch.unchanged))
        return View(batch, weights, changed or refiltered)

    def _tried(self, novel: Floats) -> bool:
        """Whether a trial on images that are new found another filter."""
        return len(novel) > 0 and self.choice.try_on(novel, self._source_answer)

    def stem_shift(self) -> float:
        """Squared drift of the stem, in sigma_S^2; a filter hides how far that was."""
        return self.watch.drift.score**2 if self.choice.name == AS_IS else np.inf

    def batch(self, images: Floats) -> Batch:
        return Batch.of(self._engine, self._parameters, images)

    def _filtered(self, images: Floats) -> tuple[Batch, list[Floats], bool]:
        """The batch, features that theta cannot reach, and whether the filter still fits."""
        filtered = self.choice.apply(images)  # not kept: a copy of the batch
        batch, fits = self.batch(filtered), self.choice.still_fits(images, filtered)
        return batch, self.watch.features(batch), fits

    def _filtered_again(self, images: Floats) -> tuple[Batch, list[Floats]]:
        self._budget.spend((1 - self._engine.cone_share) * len(images))
        batch, features, _ = self._filtered(images)
        return batch, features

    def _trial_due(self, reserve: float, unevenness: float) -> bool:
        choice, credit = self.choice, self._budget.credit
        drifted = self.watch.drift.significant or choice.name != AS_IS
        if not self._settings.filters or not drifted or choice.settled:
            return False
        if unevenness > self._settings.filter_unevenness:
            return False
        first = choice.before_first_trial and credit > 0
        return first or choice.trying or credit - choice.reserve - reserve > 0

    def _source_answer(self, images: Floats) -> Outputs:
        self._budget.spend(len(images))
        return self.batch(images)(self._parameters.source)

    def state(self) -> dict[str, NDArray[Any]]:
        return states.states_of({"filter": self.choice, "watch": self.watch})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all({"filter": self.choice, "watch": self.watch}, state)
