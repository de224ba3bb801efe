"""Never worse than doing nothing, for answers: their length, their repetitions, their entropy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.runtime.events import Discarded
from zotta_edge.runtime.generate.generation import Completion

_LOOP_TOKENS, _LOOP_TURNS, _LONGEST_LOOP = 12, 4, 16
_FIRST, _LATELY = 16, 16  # answers that the others are compared with, and the last ones
_ENTROPY_SHARE = 0.25  # of the first answers': less is a model that is sure of everything
_LIMIT_RISE = 0.5  # more answers that only the limit ends


@dataclass(frozen=True)
class AnswerReplaced(Discarded):
    """The adapted answer was empty or went in circles; the source's was given instead."""

    kind: ClassVar[str] = "replaced"


@dataclass(frozen=True)
class DecoderForgot(Discarded):
    """Answers became endless or too sure; adaptation went back to the source."""

    kind: ClassVar[str] = "forgot"


def loops(tokens: Sequence[int]) -> bool:
    """Whether an answer ends in the same few tokens over and over.

    >>> loops([5, 6, 7, 8] * 4), loops([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    (True, False)
    """
    for length in range(1, _LONGEST_LOOP + 1):
        turns = max(_LOOP_TURNS, -(-_LOOP_TOKENS // length))
        tail = list(tokens[-length * turns :])
        if len(tail) == length * turns and tail == tail[:length] * turns:
            return True
    return False


def fault(answer: Completion) -> str:
    """What is wrong with an answer, in a word; empty if nothing is."""
    if not answer.tokens:
        return "empty"
    return "going in circles" if loops(answer.tokens) else ""


class AnswerWatch:
    """Entropy and ends of the last answers against those of the first."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._first, self._lately = np.zeros(2), np.zeros(2)  # entropy, ended by the limit
        self._count = 0

    def observe(self, answer: Completion) -> str:
        """Count an answer; why adaptation should start anew, or nothing."""
        values = np.array([answer.entropy, float(not answer.stopped)])
        self._count += 1
        if self._count <= _FIRST:
            self._first += (values - self._first) / self._count
            self._lately = self._first.copy()
            return ""
        self._lately += (values - self._lately) / _LATELY
        (entropy, endless), (source, before) = self._lately, self._first
        if entropy < _ENTROPY_SHARE * source:
            return f"entropy fell from {source:.3g} to {entropy:.3g}"
        if endless > before + _LIMIT_RISE:
            return f"{endless:.0%} of the answers do not end, {before:.0%} did not at first"
        return ""

    def state(self) -> dict[str, NDArray[Any]]:
        count = np.array([self._count])
        return {"first": self._first, "lately": self._lately, "count": count}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._first, self._lately = state["first"].copy(), state["lately"].copy()
        self._count = int(state["count"][0])
