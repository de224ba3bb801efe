"""How one-sided the content of a stream is, and what that does to a mean of features."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.watch.drift import RunningMean
from zotta_edge.runtime.watch.statistics import Doubles, log_softmax


class ClassMix:
    """The running mean answer p, and the mean sureness sum p_i^2 of single answers."""

    def __init__(
        self,
        classes: int,
        source_samples: int,
        stem_shift: Callable[[], float],
        settings: PrimedSettings,
    ) -> None:
        self._answers = RunningMean(settings.window, classes + 1)
        self._source_samples, self._settings = source_samples, settings
        self._stem_shift = stem_shift

    def observe(self, logits: Floats, weights: Doubles) -> None:
        answers = np.exp(log_softmax(logits))
        self._answers.add(np.c_[answers, np.square(answers).sum(axis=1)], weights)

    def noise(self, running: RunningMean) -> Callable[[float], float]:
        """Variance of a running mean less the source's, in units of one sample's variance.

        It is a function of the share of the source's spread that the stream does not show. Where
        that is for want of content, its mean may be off by as much.
        """
        known = running.variance + 1 / self._source_samples + self.unevenness
        weight, one_sidedness = self._settings.content_weight, self.one_sidedness
        return lambda missing: known + weight * missing * one_sidedness

    @property
    def one_sidedness(self) -> float:
        """How far a lack of spread is believed to be a lack of content, 0 to 1.

        Drift flattens features, too. It is content where answers are sure and of few classes. As
        long as the samples are too few to know the mix of all classes, the stem is asked, whose
        features depend less on what is seen: drift would show there.
        """
        sureness, settings = self._answers.mean[-1], self._settings
        undrifted = max(0.0, 1 - self._stem_shift() / settings.content_drift)
        unknown = min(1.0, len(self._answers.mean[:-1]) * self._answers.variance)  # classes / n
        few = min(1.0, self._excess / settings.content_mix) ** 2
        return float(max(undrifted * unknown, few * sureness**settings.content_power))

    @property
    def unevenness(self) -> float:
        """0 for an even mix, up to 1 where all answers are one class.

        The mean features of a few classes are off by up to sigma_S without any drift. For the mean
        answer p, sum p^2 is 1 / classes in an even mix, and sampling adds 1 / n. Drift, too, makes
        answers alike, but it also makes them unsure: those with sum p_i^2 near 1 are believed.
        """
        return float(self._excess * self._answers.mean[-1] ** self._settings.sureness_power)

    @property
    def _excess(self) -> float:
        """Of sum p^2, over an even mix of as many samples."""
        mean = self._answers.mean[:-1]
        even = 1 / len(mean) + self._answers.variance
        return max(0.0, float(np.square(mean).sum()) - even)

    def reset(self) -> None:
        self._answers.reset()

    def state(self) -> dict[str, NDArray[Any]]:
        return self._answers.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._answers.restore(state)
