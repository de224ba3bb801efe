"""Which image filter a stream needs: the one whose features are most like the source's."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.state import file as states
from zotta_edge.runtime.watch.drift import RunningMean
from zotta_edge.runtime.watch.statistics import Doubles, Source, entropies, floored, pooled

log = logging.getLogger(__name__)

_TRIAL = 12  # images that every filter is tried on before a choice
_EVIDENCE = 64  # images that a stream's trials look at in all, before the choice is final
_WORTH = 0.7  # of the loss without a filter: what a filter must reach to be taken,
_STILL_WORTH = 0.85  # and to be kept
_OTHER = 0.3  # in the log of what a filter changes: what images of one stream may differ in
_TINY = 1e-12  # no image is changed so little


class Correction:
    """The filter in use; tries all of them on a few images when asked to, and keeps the best.

    Their loss is the paper's in kind, with the source's affines: entropy of the answers times the
    distance from the source of the mean features (all layers) and of the mean embedding, in units
    of the source's spread. A product of the three needs no weights. What adaptation watches comes
    after the filter, so the filter is watched here: when it no longer changes images as much as it
    did at first, the stream is another.
    """

    def __init__(self, filters: Filters, calibration: Calibration, settings: Settings) -> None:
        self._filters, self._settings = filters, settings
        layers, embedding = Source.of(calibration), calibration.embedding_std
        self._mean = np.concatenate([layers.mean, calibration.embedding_mean])
        self._std = np.concatenate([floored(layers.std), floored(embedding)])
        self._ends = [*layers.ends, len(self._mean)]  # of the layers, and of the embedding
        self._tried = {name: RunningMean(_EVIDENCE, len(self._mean) + 1) for name in filters.names}
        self._first, self._now = (RunningMean(settings.drift_window, 2) for _ in range(2))
        self.reset()

    def reset(self) -> None:
        self._samples = 0  # tried on, of a trial
        for mean in self._tried.values():
            mean.reset()
        self._use(AS_IS)

    def _use(self, name: str) -> None:
        self.name = name
        self._first.reset()
        self._now.reset()

    @property
    def trying(self) -> bool:
        """Whether a trial goes on: small batches need several."""
        return self._samples > 0

    @property
    def settled(self) -> bool:
        return not self.trying and self._tried[AS_IS].samples == _EVIDENCE

    @property
    def untried(self) -> bool:
        return self._tried[AS_IS].samples == 0

    @property
    def reserve(self) -> float:
        """Passes to save for the next trial; a stream's first one may be paid for later."""
        return 0.0 if self.untried or self.settled else _TRIAL * len(self._tried)

    def try_on(self, images: Floats, answer: Callable[[Floats], Outputs]) -> None:
        """Have the newest images answered through every filter, and choose."""
        few = images[-(_TRIAL - self._samples) :]  # the first may be of the stream before
        for name, mean in self._tried.items():
            outputs = answer(self._filters(name, few))
            features = np.c_[pooled(outputs), outputs.embedding]
            mean.add(np.c_[(features - self._mean) / self._std, entropies(outputs.logits)])
        self._samples = (self._samples + len(few)) % _TRIAL
        if not self.trying:
            self._choose()

    def _choose(self) -> None:
        losses = {name: self._loss(mean.mean) for name, mean in self._tried.items()}
        worth = dict.fromkeys(losses, _WORTH) | {self.name: _STILL_WORTH} | {AS_IS: 1.0}
        best = min(losses, key=lambda name: losses[name] / worth[name])
        if best != self.name:
            found = losses[best], losses[AS_IS]
            log.info("filter %s -> %s: loss %.3g, %.3g without", self.name, best, *found)
            self._use(best)

    def _loss(self, mean: Doubles) -> float:
        *layers, embedding, entropy = np.split(np.square(mean), self._ends)
        features = np.mean([layer.mean() for layer in layers])
        return float(np.sqrt(features * embedding.mean() * entropy.item()))

    def still_right(self, images: Floats, filtered: Floats) -> bool:
        """Whether the filter changes these images as much as it did those it was chosen for."""
        if self.name == AS_IS:
            return True
        pairs = zip(images, filtered, strict=True)
        change = np.log([np.square(before - after).mean() + _TINY for before, after in pairs])
        rows = np.stack([change, np.square(change)], axis=1)
        self._now.add(rows)
        if self._first.samples < self._first.window:
            self._first.add(rows)
            return True
        (mean, square), noise = self._first.mean, self._first.variance + self._now.variance
        sampling = self._settings.drift_threshold * noise * max(square - mean**2, 0.0)
        return bool((self._now.mean[0] - mean) ** 2 <= max(sampling, _OTHER**2))

    def state(self) -> dict[str, NDArray[Any]]:
        numbers = np.array([self._filters.names.index(self.name), self._samples])
        return {"numbers": numbers} | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)
        name, samples = state["numbers"].tolist()
        self.name, self._samples = self._filters.names[int(name)], int(samples)

    def _parts(self) -> dict[str, states.Stateful]:
        return {"first": self._first, "now": self._now, **self._tried}
