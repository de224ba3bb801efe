"""Whether answers stand in an order: more like their neighbours in time than chance allows."""

import numpy as np
from numpy.typing import NDArray

from zotta_edge.runtime.watch.statistics import Doubles

# What an answer that is the same as the k-th before it counts.
_LAGS: Doubles = np.array([0.9**lag for lag in range(16)])


def order(answers: NDArray[np.intp]) -> float:
    """How many deviations the answers are more alike their neighbours than in any other order.

    A permutation test (Mantel's), in closed form. The statistic is half of sum_ij A_ij B_ij, A by
    how far i and j are apart, B = 1 where their answers are the same. Over all orders of the same
    answers its mean and variance depend on sums of A and of B alone. One coincidence must not
    count where all answers differ: 1 is added to the variance.

    >>> round(order(np.repeat([0, 1, 2, 3], 10)), 1), round(order(np.arange(40) % 4), 1)
    (19.5, -2.0)
    """
    count = len(answers)
    if count < 8:
        return 0.0
    lags = _LAGS[: count - 1]
    same = sum(
        weight * np.count_nonzero(answers[lag:] == answers[:-lag])
        for lag, weight in enumerate(lags, 1)
    )
    near, alike = _neighbours(count, lags), _alike(answers)
    mean, variance = _moments(count, near, alike)
    return float((2 * same - mean) / np.sqrt(max(variance, 0.0) + 4))


def _neighbours(count: int, lags: Doubles) -> tuple[float, float, float]:
    """Of A: the sum, the sum of squares, and the sum of the squared sums of its rows."""
    pairs = count - np.arange(1, len(lags) + 1)
    until = np.concatenate([[0.0], np.cumsum(lags)])
    before = np.minimum(np.arange(count), len(lags))  # neighbours on that side
    rows = until[before] + until[before[::-1]]
    return 2 * float(pairs @ lags), 2 * float(pairs @ lags**2), float(rows @ rows)


def _alike(answers: NDArray[np.intp]) -> tuple[float, float, float]:
    """The same three sums of B, from how often each answer was given."""
    often = np.unique(answers, return_counts=True)[1].astype(np.float64)
    pairs = float(often @ (often - 1))
    return pairs, pairs, float(often @ (often - 1) ** 2)


def _moments(
    count: int, one: tuple[float, float, float], other: tuple[float, float, float]
) -> tuple[float, float]:
    """Mean and variance of sum_ij A_ij B_ij over all orders: pairs share two, one or no index."""
    ways = np.cumprod(count - np.arange(4.0))[1:] * (2, 4, 1)  # to place the indices that differ
    mean = one[0] * other[0] / (count * (count - 1))
    return mean, float((_shared(one) * _shared(other) / ways).sum()) - mean**2


def _shared(sums: tuple[float, float, float]) -> Doubles:
    """sum A_ij A_kl over all ij and kl that have both, just one, or no index in common."""
    total, squares, rows = sums
    both, single = 2 * squares, 4 * (rows - squares)
    return np.array([both, single, total**2 - both - single])
