"""The permutation test on the order of answers, against all orders there are."""

from itertools import permutations

import numpy as np
import pytest

from zotta_edge.runtime.watch.order import _LAGS, order


def alike(answers: tuple[int, ...]) -> float:
    """Twice the weighted number of neighbours with the same answer."""
    pairs = [(i, j) for i in range(len(answers)) for j in range(len(answers)) if i != j]
    return sum(_LAGS[abs(i - j) - 1] for i, j in pairs if answers[i] == answers[j])


@pytest.mark.parametrize("answers", [(0, 0, 1, 2, 2, 1, 0, 3), (0, 0, 0, 0, 1, 1, 1, 2)])
def test_moments_are_those_of_all_orders(answers: tuple[int, ...]) -> None:
    found = np.array([alike(one) for one in permutations(answers)])
    expected = (alike(answers) - found.mean()) / np.sqrt(found.var() + 4)
    assert order(np.array(answers)) == pytest.approx(expected)


def test_runs_are_an_order_and_draws_are_not() -> None:
    rng = np.random.default_rng(0)
    draws = [order(rng.integers(0, classes, 200)) for classes in (2, 10, 1000) for _ in range(200)]
    assert np.quantile(draws, 0.99) < 3  # few classes have a longer tail than normal
    assert order(np.repeat(np.arange(10), 20)) > 20


@pytest.mark.parametrize("answers", [[], [3], [1] * 100, list(range(100)), [1, 1, *range(2, 100)]])
def test_what_has_no_order_has_none(answers: list[int]) -> None:
    """Nor does a single coincidence make one."""
    assert order(np.array(answers, int)) < 1
