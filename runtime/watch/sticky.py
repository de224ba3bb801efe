"""Classes that stay for a while: a chain over classes, for several rates of staying at once.

The next image's class is the last one's with probability rho, else drawn from r_t, what was seen
lately and what the image itself has as candidates:

    pi_t = rho p_(t-1) + (1 - rho) r_t,     p_t = pi_t q_t / sum,     evidence_t = pi_t . q_t

q_t is the likelihood of the classes. rho = 0 is the rival that the others are held against: an
uneven mix that changes, but in which no answer says anything of the next.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zotta_edge.runtime.watch.statistics import Doubles

RATES = np.array([0.0, 0.5, 0.8, 0.9, 0.95, 0.98])  # rho
_FLOOR = 1e-2  # of the mean likelihood: an image may be an outlier
_EVEN = 30.0  # images of an even mix that the mean answer begins with
_LONG = 1000.0  # images behind the mean answer
_LATELY = 8  # images behind the mix seen lately
_CANDIDATES = 10  # classes an image leaves open
_OPEN = 0.3  # share of the candidates in r, the rest was seen lately


class Filtered(NamedTuple):
    """A batch on its way through the chain."""

    likelihood: Doubles  # q [batch, class]
    fresh: Doubles  # r [batch, class]
    posterior: Doubles  # p [batch, rate, class]
    evidence: Doubles  # log of each rate's over that of rho = 0, [batch, rate]


class StickyChain:
    """Remembers p, the mix seen lately, and the mean answer.

    An answer that the model is quick to give to anything says little: likelihoods are answers over
    their running mean.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self.reset()

    def reset(self) -> None:
        self._posterior = np.full((len(RATES), self._classes), 1 / self._classes)
        self._lately = np.full(self._classes, 1 / self._classes)
        self._answers = np.zeros(self._classes)  # summed over the last images

    def forward(self, answers: Doubles) -> Filtered:
        """Take in the answers of a batch, [batch, class], one after the other."""
        steps = [self._step(answer) for answer in answers]
        return Filtered(*(np.stack(part) for part in zip(*steps, strict=True)))

    def _step(self, answer: Doubles) -> tuple[Doubles, Doubles, Doubles, Doubles]:
        likelihood = self._likelihood(answer)
        fresh = (1 - _OPEN) * self._lately + _OPEN * candidates(likelihood)
        prior = RATES[:, None] * self._posterior + (1 - RATES[:, None]) * fresh
        joint = prior * likelihood
        evidence = joint.sum(axis=1)
        self._posterior = joint / evidence[:, None]
        self._lately = self._lately + (likelihood / likelihood.sum() - self._lately) / _LATELY
        return likelihood, fresh, self._posterior, np.log(evidence / evidence[0])

    def _likelihood(self, answer: Doubles) -> Doubles:
        answers = self._answers + answer
        self._answers = answers * min(1.0, _LONG / answers.sum())
        ratio = answer / (self._answers + _EVEN / self._classes)
        likelihood: Doubles = (1 - _FLOOR) * ratio / ratio.mean() + _FLOOR
        return likelihood

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "posterior": self._posterior,
            "lately": self._lately,
            "answers": self._answers,
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        posterior, lately, answers = (state[name] for name in ("posterior", "lately", "answers"))
        mixes = [*posterior, lately]
        if min(mix.min() for mix in [*mixes, answers]) < 0 or answers.sum() > 2 * _LONG:
            raise ValueError("the memory of classes holds no probabilities")
        if not np.allclose([mix.sum() for mix in mixes], 1):
            raise ValueError("the memory of classes does not add up to one")
        self._posterior, self._lately, self._answers = posterior, lately, answers


def candidates(likelihood: Doubles) -> Doubles:
    """An even mix of the likeliest classes."""
    count = min(_CANDIDATES, len(likelihood))
    mix = np.zeros_like(likelihood)
    mix[np.argpartition(-likelihood, count - 1)[:count]] = 1 / count
    return mix


def smoothed(batch: Filtered) -> Doubles:
    """p given the whole batch, later images too: forward times backward, [batch, rate, class].

    beta_t = (1 - rho) sum_c r_(t+1) q_(t+1) beta_(t+1) + rho q_(t+1) beta_(t+1)
    """
    posterior, beta = batch.posterior.copy(), np.ones_like(batch.posterior[0])
    stay = RATES[:, None]
    for at in range(len(posterior) - 2, -1, -1):
        ahead = batch.likelihood[at + 1] * beta
        drawn = (batch.fresh[at + 1] * ahead).sum(axis=1, keepdims=True)
        beta = (1 - stay) * drawn + stay * ahead
        beta /= beta.mean(axis=1, keepdims=True)
        posterior[at] *= beta
    smooth: Doubles = posterior / posterior.sum(axis=2, keepdims=True)
    return smooth
