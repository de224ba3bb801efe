"""Whether a prompt is what the model expects: then the source answers it, whatever was learned.

A model that fits its text loses, on average, what it expects to lose: the entropy of its own
predictions. How far chance takes a loss from there is known as well, because -log p has a variance
under p. A loss further out is text of another domain, which adaptation is for; all else was fine
before. No sample of the source is needed.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.generate.engine import DecoderEngine, Pass, Tokens
from zotta_edge.runtime.generate.prompts import Batch, Ints
from zotta_edge.runtime.watch.statistics import log_softmax

_LATEST = 256  # tokens: more would find the smallest misfit
_BLOCK = 32  # tokens whose probabilities are held at a time
_ROUNDING = 1e-3  # of variances and losses that are 0, with a large vocabulary


@dataclass(frozen=True)
class SurpriseSettings(Options):
    """When a prompt is adapted to; chosen on development questions and pages."""

    surprise: float = option(
        2.0, "least loss of a prompt, in standard deviations above what is expected; 0: any", low=0
    )
    kilobytes: int = option(
        512 * 1024, "memory for logits of one pass; of longer prompts the last tokens count", low=1
    )


@dataclass(frozen=True, eq=False)
class Look:
    """What the source thinks of a batch of prompts."""

    expected: NDArray[np.bool_]  # [batch]
    started: Pass | None = None  # its pass over them, to go on from


class Gate:
    """Looks at prompts before a method does.

    Parameters
    ----------
    engine
        The model; the source's scales are in its file.
    least
        `surprise`; 0 lets everything through, for no pass.
    kilobytes
        Memory for logits.
    """

    def __init__(self, engine: DecoderEngine, least: float, kilobytes: int) -> None:
        self._engine, self._least = engine, least
        self._positions = engine.positions_in(kilobytes)
        self.expected = 0  # prompts so far

    def look(self, batch: Batch) -> Look:
        """Words say nothing about a picture: prompts with one are always let through."""
        if not self._least or batch.image_rows is not None:
            return Look(np.zeros(len(batch), bool))
        kept = max(1, min(_LATEST, self._positions // len(batch)))
        first = max(0, batch.ids.shape[1] - kept)
        tokens = Tokens(batch.ids, batch.mask, batch.positions)
        seen = self._engine.forward(tokens, first=first)
        ids, words = batch.ids[:, first:], batch.words[:, first:]
        found = [surprise(*each) for each in zip(seen.logits, ids, words, strict=True)]
        started = Pass(seen.logits[:, -1:], seen.hidden, seen.cache)
        return Look(np.array(found) < self._least, started)


def surprise(logits: Floats, ids: Ints, words: NDArray[np.bool_]) -> float:
    """Standard deviations by which the loss of `words` exceeds its expectation.

    >>> sure = np.log(np.array([[0.9, 0.1]] * 3, np.float32))
    >>> said = np.array([False, True, True])
    >>> [round(surprise(sure, np.array(ids), said), 1) for ids in ([0, 0, 0], [0, 1, 1])]
    [-0.5, 4.2]
    """
    places = np.flatnonzero(words[1:])
    excess, variance = 0.0, 0.0
    for start in range(0, len(places), _BLOCK):
        now = places[start : start + _BLOCK]
        scores = log_softmax(logits[now])
        share = np.exp(scores)
        expected = -(share * scores).sum(axis=1)
        excess += float((-scores[np.arange(len(now)), ids[now + 1]] - expected).sum())
        variance += float(((share * scores**2).sum(axis=1) - expected**2).sum())
    return excess / math.sqrt(max(variance, _ROUNDING))
