"""The stream's channel moments over about the last few hundred images, and how sure they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.format.moments import SourceMoments
from zotta_edge.runtime.methods.moments.settings import RunningMomentSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.drift import RunningMean
from zotta_edge.runtime.watch.statistics import Doubles, log_softmax

AT_SOURCE = 1e30  # a noise that leaves everything as it is


@dataclass(frozen=True)
class Share:
    """What a batch is given of the running moments: M = keep M + weights . instance."""

    keep: float
    weights: Doubles  # [batch]
    variance: float  # of the mean with the batch in it, in units of one image's


class RunningMoments:
    """Running means of the instance moments, and of the answers, whose mix of classes counts.

    Parameters
    ----------
    source
        What they are compared with.
    """

    def __init__(
        self, source: SourceMoments, classes: int, settings: RunningMomentSettings
    ) -> None:
        self._settings, self._source_noise = settings, 1 / source.samples
        self._source = source
        self._moments = RunningMean(settings.moment_window, 2 * int(source.ends[-1]))
        self._answers = RunningMean(settings.moment_window, classes + 1)

    def reset(self) -> None:
        self._moments.reset()
        self._answers.reset()

    @property
    def mean(self) -> Floats:
        """[1, 2 D], for the graph."""
        mean: Floats = self._moments.mean.astype(np.float32)[None]
        return mean

    def share_of(self, weights: Doubles) -> Share:
        """What a batch of images of these weights, from 0 to 1 new, would be given."""
        ahead = RunningMean(self._moments.window, 0)
        ahead.restore(self._moments.state() | {"mean": np.zeros(0)})
        ahead.add(np.zeros((len(weights), 0), np.float32), weights)
        if not ahead.weight:
            return Share(1.0, np.zeros(len(weights)), 0.0)
        return Share(
            1 - float(weights.sum()) / ahead.weight, weights / ahead.weight, ahead.variance
        )

    def noise(self, share: Share) -> float:
        """Variance of the moments less the source's, in units of one image's."""
        if share.variance == 0:  # nothing was seen yet
            return AT_SOURCE
        sampling = self._settings.moment_patience * share.variance + self._source_noise
        return sampling + self._settings.moment_mix * self.unevenness

    def distance_with(self, instance: Floats, weights: Doubles) -> float:
        """How many times further off than sampling explains the sites are, this batch included."""
        share = self.share_of(weights)
        if share.variance == 0:
            return 0.0
        moments = share.keep * self._moments.mean + share.weights @ instance
        explained = (share.variance + self._source_noise) * self._source.energy
        return float(np.mean(self._source.distances(moments) / np.maximum(explained, 1e-30)))

    @property
    def unevenness(self) -> float:
        """Of sum p^2 of the mean answer p, over an even mix of as many images.

        Drift, too, makes answers alike, but it also makes them unsure: those with sum p_i^2 near 1
        are believed.
        """
        mean, sureness = self._answers.mean[:-1], self._answers.mean[-1]
        even = 1 / len(mean) + self._answers.variance
        excess = max(0.0, float(np.square(mean).sum()) - even)
        return float(excess * sureness**self._settings.moment_sureness)

    @property
    def knows_no_answers(self) -> bool:
        return self._answers.samples == 0

    def forget_answers(self) -> None:
        self._answers.reset()

    def observe_answers(self, logits: Floats, weights: Doubles) -> None:
        answers = np.exp(log_softmax(logits))
        self._answers.add(np.c_[answers, np.square(answers).sum(axis=1)], weights)

    def observe(self, instance: Floats, weights: Doubles) -> None:
        self._moments.add(instance, weights)

    def state(self) -> dict[str, NDArray[Any]]:
        return states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        states.restore_all(self._parts(), state)

    def _parts(self) -> dict[str, states.Stateful]:
        return {"moments": self._moments, "answers": self._answers}
