"""How uneven the classes of a stream are, and what that does to a mean of features."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.watch.drift import RunningMean
from zotta_edge.runtime.watch.statistics import log_softmax


class ClassMix:
    """The running mean answer p, and the mean sureness sum p_i^2 of single answers."""

    def __init__(self, classes: int, source_samples: int, settings: PrimedSettings) -> None:
        self._answers = RunningMean(settings.window, classes + 1)
        self._source_samples, self._power = source_samples, settings.sureness_power

    def observe(self, logits: Floats) -> None:
        answers = np.exp(log_softmax(logits))
        self._answers.add(np.c_[answers, np.square(answers).sum(axis=1)])

    def noise(self, running: RunningMean) -> float:
        """Variance of a running mean less the source's, in units of one sample's variance."""
        return running.variance + 1 / self._source_samples + self.unevenness

    @property
    def unevenness(self) -> float:
        """0 for an even mix, up to 1 where all answers are one class.

        The mean features of a few classes are off by up to sigma_S without any drift. For the mean
        answer p, sum p^2 is 1 / classes in an even mix, and sampling adds 1 / n. Drift, too, makes
        answers alike, but it also makes them unsure: those with sum p_i^2 near 1 are believed.
        """
        mean, sureness = self._answers.mean[:-1], self._answers.mean[-1]
        even = 1 / len(mean) + self._answers.variance
        return float(max(0.0, np.square(mean).sum() - even) * sureness**self._power)

    def reset(self) -> None:
        self._answers.reset()

    def state(self) -> dict[str, NDArray[Any]]:
        return self._answers.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._answers.restore(state)
