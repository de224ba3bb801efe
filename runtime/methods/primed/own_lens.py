"""How the network sees images one by one: each through the filter it needs, with its own move."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, Prime
from zotta_edge.format.signatures import Signatures
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.events import Events, StreamChanged
from zotta_edge.runtime.io.preprocessing import mirrored
from zotta_edge.runtime.methods.contract import calibration_of
from zotta_edge.runtime.methods.primed.budget import PassBudget
from zotta_edge.runtime.methods.primed.filter_choice import FilterChoice
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters
from zotta_edge.runtime.methods.primed.measures import Measures
from zotta_edge.runtime.methods.primed.own_moves import OwnMoves
from zotta_edge.runtime.methods.primed.published import Published
from zotta_edge.runtime.methods.primed.sameness import Common, Sameness
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.signature import Maps, best_filters
from zotta_edge.runtime.methods.primed.stream_watch import StreamWatch
from zotta_edge.runtime.methods.primed.view import View
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.parameters import Parameters


class OwnLens:
    """Reads every image's signature; the stream only lends what its images have in common.

    Where they have much in common, filters are tried on a dozen of them, once the budget allows it:
    what all of them show together is a better judge than what each predicts.
    """

    def __init__(
        self,
        engine: Engine,
        signatures: Signatures,
        prime: Prime,
        parameters: Parameters,
        budget: PassBudget,
        settings: PrimedSettings,
        events: Events,
    ) -> None:
        info, calibration = engine.info, calibration_of(engine.info)
        self._engine, self._parameters, self._budget = engine, parameters, budget
        self._settings, self._events = settings, events
        self._p = info.preprocessing
        self._trials = settings.filters and not info.outputs  # a trial looks at class scores
        self._filters = Filters(info.preprocessing, calibration.pixels)
        self._names = (AS_IS, *signatures.filters)
        self._choice = FilterChoice(self._filters, calibration, settings, events)
        self._measures = Measures(info.preprocessing, engine.file.threads)
        self._maps = Maps(signatures, calibration, min(prime.layers))
        self._own = OwnMoves(self._maps, prime, parameters, settings)
        self._same = Sameness(len(signatures.filters), signatures.spread, settings)
        self.watch = StreamWatch(info, engine.chosen, settings)

    def reset(self) -> None:
        self._same.reset()
        self._choice.reset()
        self.watch.reset()

    def forget(self) -> None:
        """Drop what a trial found: its answers were all alike."""
        self._choice.reset()

    @property
    def reserve(self) -> float:
        return self._choice.reserve

    @property
    def common(self) -> Common:
        common, choice = self._same.common, self._choice
        if choice.before_first_trial or choice.trying or not self._alike(common):
            return common
        if choice.name not in choice.open_between(self._expected):  # another world since the trial
            return common
        return common._replace(tried=self._names.index(choice.name))

    def _alike(self, common: Common) -> bool:
        return common.share >= self._settings.trial_sameness

    @property
    def filter(self) -> str:
        """What most images of the stream need."""
        common = self.common
        return self._names[int(self._chosen(common.gains[None], common)[0])]

    def stem_shift(self) -> float:
        """Squared drift of the stem, in sigma_S^2; a filter hides how far that was."""
        return self.watch.drift.score**2 if self.filter == AS_IS else np.inf

    def __call__(self, images: Floats, reserve: float, unevenness: float) -> View:
        """The batch, each image as it needs, and whether to forget what was learned."""
        q = self._maps.products(self._measures(images))
        gains = self._maps.gains(q)
        self._same.observe(gains)
        chosen = self._chosen(gains, self.common)
        batch = self._batch(images, chosen)
        features = self.watch.features(batch)
        weights = self.watch.weigh(features, len(images))
        changed = self.watch.changed(features, weights)
        if changed:
            self._events.report(StreamChanged(self.watch.drift.score))
            self._same.reset()
            self._same.observe(gains)
            self._choice.reset()
            self.watch.begin(features, weights, 0)  # some of the batch may be of the stream before
        if self._trial_due(reserve, unevenness) and self._tried(images[weights > 0.5]):
            chosen = self._chosen(gains, self.common)
            self._budget.spend((1 - self._engine.cone_share) * len(images))
            batch = self._batch(images, chosen)
            features, changed = self.watch.features(batch), True
            self.watch.begin(features, weights, min(len(images), self.watch.unchanged))
        return self._view(batch, q, chosen, weights, changed)

    def _trial_due(self, reserve: float, unevenness: float) -> bool:
        choice, credit = self._choice, self._budget.credit
        if not self._trials or choice.settled or not self._alike(self._same.common):
            return False
        if self._same.images < self._settings.trial_images:
            return False
        if choice.before_first_trial and len(choice.open_between(self._expected)) < 2:
            return False
        drifted = self.watch.drift.significant or self.filter != AS_IS
        if not drifted or unevenness > self._settings.filter_unevenness:
            return False
        first = choice.before_first_trial and credit > 0
        return first or choice.trying or credit - choice.reserve - reserve > 0

    def _tried(self, novel: Floats) -> bool:
        """Whether a trial on images that are new found another filter than they had."""
        if not len(novel):
            return False
        before = self.filter
        self._choice.try_on(novel, self._source_answer, self._expected)
        return self.filter != before

    @property
    def _expected(self) -> dict[str, float]:
        """Log gain of each filter, by the signatures of the stream's images together."""
        return dict(zip(self._names[1:], self._same.common.gains.tolist(), strict=True))

    def _source_answer(self, images: Floats) -> Outputs:
        self._budget.spend(len(images))
        return Batch.of(self._engine, self._parameters, images)(self._parameters.source)

    def read(self, images: Floats, known: Published, mirror: bool = False) -> View:
        """The batch by what is published, seen in a mirror if asked for; changes nothing."""
        q = self._maps.products(self._measures(images))
        chosen = self._chosen(self._maps.gains(q), known.common)
        batch = self._batch(images, chosen, mirror)
        return self._view(batch, q, chosen, np.zeros(len(images)), False)

    @property
    def _margin(self) -> float:
        return self._settings.filter_margin if self._settings.filters else np.inf

    def _chosen(self, gains: Floats, common: Common | None) -> NDArray[np.intp]:
        return common.chosen(gains, self._margin) if common else best_filters(gains, self._margin)

    def _batch(self, images: Floats, chosen: NDArray[np.intp], mirror: bool = False) -> Batch:
        filtered = self._filters.each([self._names[index] for index in chosen], images)
        seen = mirrored(filtered, self._p) if mirror else filtered
        return Batch.of(self._engine, self._parameters, seen)

    def _view(
        self,
        batch: Batch,
        q: Floats,
        chosen: NDArray[np.intp],
        weights: NDArray[np.float64],
        begins_anew: bool,
    ) -> View:
        stem = np.concatenate([np.empty((len(q), 0), np.float32), *self.watch.features(batch)], 1)
        need = self._own.needed(self._maps.off_source(stem), q, chosen)
        moves = self._own.moves(need)
        return View(
            answer=lambda theta: batch(self._own.thetas(theta, moves)),
            weights=weights,
            begins_anew=begins_anew,
            explained=moves.explained,
            deltas=need.deltas,
        )

    def state(self) -> dict[str, NDArray[Any]]:
        return states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)

    def _parts(self) -> dict[str, states.Stateful]:
        return {"common": self._same, "filter": self._choice, "watch": self.watch}
