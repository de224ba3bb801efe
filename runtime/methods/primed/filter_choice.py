"""Which image filter a stream needs: the one whose features are most like the source's."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.events import Events, FilterChosen
from zotta_edge.runtime.methods.primed.filter_watch import FilterWatch
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters
from zotta_edge.runtime.methods.primed.settings import FilterSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.drift import RunningMean
from zotta_edge.runtime.watch.statistics import Doubles, Source, entropies, floored, pooled


class FilterChoice:
    """The filter in use; tries all of them on a few images when asked to, and keeps the best.

    Their loss is the paper's in kind, with the source's affines: entropy of the answers times the
    distance from the source of the mean features (all layers) and of the mean embedding, in units
    of the source's spread. A product of the three needs no weights. Where the log of a filter's
    loss, against that without, was predicted as well, filters that promise nothing are not tried,
    and prediction and trial have a vote each: the geometric mean of both decides.
    """

    def __init__(
        self, filters: Filters, calibration: Calibration, settings: FilterSettings, events: Events
    ) -> None:
        self._filters, self._settings, self._events = filters, settings, events
        layers, embedding = Source.of(calibration), calibration.embedding_std
        self._mean = np.concatenate([layers.mean, calibration.embedding_mean])
        self._std = np.concatenate([floored(layers.std), floored(embedding)])
        self._ends = [*layers.ends, len(self._mean)]  # of the layers, and of the embedding
        width = len(self._mean) + 1
        self._tried = {name: RunningMean(settings.filter_evidence, width) for name in filters.names}
        self._watch = FilterWatch(settings)
        self.reset()

    def reset(self) -> None:
        self._samples = 0  # tried on, of the trial under way
        for mean in self._tried.values():
            mean.reset()
        self.use(AS_IS)

    def use(self, name: str) -> None:
        self.name = name
        self._watch.reset()

    @property
    def trying(self) -> bool:
        """Whether a trial is under way: small batches need several."""
        return self._samples > 0

    @property
    def settled(self) -> bool:
        """Whether the choice is final for this stream."""
        return not self.trying and self._tried[AS_IS].samples == self._settings.filter_evidence

    @property
    def before_first_trial(self) -> bool:
        return self._tried[AS_IS].samples == 0

    @property
    def reserve(self) -> float:
        """Passes to save for the next trial; a stream's first one may be paid for later."""
        free = self.before_first_trial or self.settled
        return 0.0 if free else self._settings.filter_trial * len(self._candidates(None))

    def open_between(self, expected: Mapping[str, float]) -> list[str]:
        """The filters, none among them, that by what was predicted are about as good as the best.

        A dozen images can tell these apart; against a clear prediction they are more often wrong.
        """
        predicted = {AS_IS: 0.0} | dict(expected)
        furthest = min(predicted.values()) + self._settings.filter_hope
        return [name for name in self._tried if predicted[name] < furthest]

    def apply(self, images: Floats) -> Floats:
        return self._filters(self.name, images)

    def still_fits(self, images: Floats, filtered: Floats) -> bool:
        """Whether the filter has as much to do as when it was chosen: else the stream changed."""
        return self.name == AS_IS or self._watch.as_at_first(images, filtered)

    def try_on(
        self,
        images: Floats,
        answer: Callable[[Floats], Outputs],
        expected: Mapping[str, float] | None = None,
    ) -> bool:
        """Have the newest images answered through the filters; whether another one is better.

        `expected` is the predicted log of each filter's loss against that without.
        """
        trial, before = self._settings.filter_trial, self.name
        few = images[-(trial - self._samples) :]  # the first may be of the stream before
        for name in self._candidates(expected):
            mean, outputs = self._tried[name], answer(self._filters(name, few))
            features = np.c_[pooled(outputs), outputs.embedding]
            mean.add(np.c_[(features - self._mean) / self._std, entropies(outputs.logits)])
        self._samples = (self._samples + len(few)) % trial
        if not self.trying:
            self._choose(expected)
        return self.name != before

    def _candidates(self, expected: Mapping[str, float] | None) -> list[str]:
        """Those of the stream's first trial, which is for all that may help."""
        if not self.before_first_trial:
            return [name for name, mean in self._tried.items() if mean.samples]
        if expected is None:
            return list(self._tried)
        open_ones = self.open_between(expected)
        return [name for name in self._tried if name == AS_IS or name in open_ones]

    def _choose(self, expected: Mapping[str, float] | None) -> None:
        losses = {name: self._loss(self._tried[name].mean) for name in self._candidates(None)}
        gain, keep = self._settings.filter_gain, self._settings.filter_keep
        if expected is not None:
            predicted = {name: losses[AS_IS] * math.exp(expected.get(name, 0.0)) for name in losses}
            losses = {name: math.sqrt(losses[name] * predicted[name]) for name in losses}
            gain, keep = self._settings.vote_gain, self._settings.vote_keep
        required = dict.fromkeys(losses, gain) | {self.name: keep} | {AS_IS: 1.0}
        best = min(losses, key=lambda name: losses[name] / required[name])
        if best != self.name:
            self._events.report(FilterChosen(self.name, best, losses[best], losses[AS_IS]))
            self.use(best)

    def _loss(self, mean: Doubles) -> float:
        *layers, embedding, entropy = np.split(np.square(mean), self._ends)
        features = np.mean([layer.mean() for layer in layers])
        return float(np.sqrt(features * embedding.mean() * entropy.item()))

    def state(self) -> dict[str, NDArray[Any]]:
        own = {"name": states.text_to_array(self.name), "trial": np.array([self._samples])}
        return own | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        self.name = states.text_from_array(state["name"], self._tried)
        self._samples = int(state["trial"][0])

    def _parts(self) -> dict[str, states.Stateful]:
        tried = {states.row("tried", name): mean for name, mean in self._tried.items()}
        return {"watch": self._watch, **tried}
