"""Which token comes next."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.generate.prompts import Ints
from zotta_edge.runtime.watch.statistics import log_softmax

_COLDEST, _WARMEST = 1e-4, 1e4  # beyond, greedy and blind; float32 knows no 1e-300


@dataclass(frozen=True)
class SamplingSettings(Options):
    """Greedy unless a temperature is given."""

    temperature: float = option(0.0, "0: the most probable token; 1: as the model says", low=0)
    top_k: int = option(0, "sample among this many tokens; 0: all", low=0)
    top_p: float = option(1.0, "sample among the tokens that hold this share", low=0, high=1)
    seed: int = option(0, "of sampled tokens and of perturbations", low=0)


def choose(logits: Floats, settings: SamplingSettings, rng: Generator) -> Ints:
    """One token for each row of logits [batch, vocabulary].

    >>> rng = np.random.default_rng(0)
    >>> choose(np.array([[0.0, 3.0, 1.0]], np.float32), SamplingSettings(), rng)
    array([1])
    """
    if settings.temperature == 0:
        return np.asarray(logits.argmax(axis=-1), np.int64)
    temperature = np.float32(min(max(settings.temperature, _COLDEST), _WARMEST))
    scores: NDArray[np.float64] = np.asarray(log_softmax(logits / temperature), np.float64)
    if settings.top_k:
        lowest = np.sort(scores, axis=-1)[:, -settings.top_k :][:, :1]
        scores[scores < lowest] = -np.inf
    if settings.top_p < 1:
        scores = _nucleus(scores, settings.top_p)
    # The largest of log p + Gumbel noise is a sample of p.
    return np.asarray((scores + rng.gumbel(size=scores.shape)).argmax(axis=-1), np.int64)


def _nucleus(scores: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Without the improbable tokens that are not needed to reach `share`."""
    order = np.argsort(-scores, axis=-1)
    probabilities = np.take_along_axis(np.exp(scores), order, -1)
    needed = np.cumsum(probabilities, axis=-1) - probabilities < share
    needed[:, 0] = True
    kept = np.zeros_like(needed)
    np.put_along_axis(kept, order, needed, -1)
    return np.where(kept, scores, -np.inf)
