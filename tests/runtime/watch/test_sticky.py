"""The chain over classes, against sums over all paths through it."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.watch.sticky import RATES, Filtered, StickyChain, candidates, smoothed

CLASSES, IMAGES = 3, 5
Doubles = NDArray[np.float64]


@pytest.fixture
def batch() -> Filtered:
    answers = np.random.default_rng(0).dirichlet(np.ones(CLASSES), IMAGES)
    return StickyChain(CLASSES).forward(answers)


def paths(batch: Filtered, rate: float, images: int) -> dict[tuple[int, ...], float]:
    """The joint probability of every sequence of classes and the first images."""
    found = {}
    for path in product(range(CLASSES), repeat=images):
        probability, before = 1.0, np.full(CLASSES, 1 / CLASSES)
        for at, label in enumerate(path):
            prior = rate * before + (1 - rate) * batch.fresh[at]
            probability *= prior[label] * batch.likelihood[at, label]
            before = np.eye(CLASSES)[label]
        found[path] = probability
    return found


def marginal(found: dict[tuple[int, ...], float], at: int) -> Doubles:
    sums = np.zeros(CLASSES)
    for path, probability in found.items():
        sums[path[at]] += probability
    return sums / sums.sum()


def test_forward_is_the_sum_over_all_paths(batch: Filtered) -> None:
    for index, rate in enumerate(RATES):
        for at in range(IMAGES):
            expected = marginal(paths(batch, rate, at + 1), at)
            np.testing.assert_allclose(batch.posterior[at, index], expected)


def test_backward_is_the_sum_over_all_paths(batch: Filtered) -> None:
    posterior = smoothed(batch)
    for index, rate in enumerate(RATES):
        found = paths(batch, rate, IMAGES)
        for at in range(IMAGES):
            np.testing.assert_allclose(posterior[at, index], marginal(found, at))


def test_evidence_is_the_probability_of_the_images(batch: Filtered) -> None:
    total = [sum(paths(batch, rate, IMAGES).values()) for rate in RATES]
    np.testing.assert_allclose(batch.evidence.sum(axis=0), np.log(np.array(total) / total[0]))


def test_a_batch_may_come_in_parts(batch: Filtered) -> None:
    answers = np.random.default_rng(0).dirichlet(np.ones(CLASSES), IMAGES)
    chain = StickyChain(CLASSES)
    parts = [chain.forward(answers[:2]), chain.forward(answers[2:])]
    for name, whole in batch._asdict().items():
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, name) for part in parts]), whole
        )


def test_an_answer_given_to_anything_says_little() -> None:
    """Class 0 is always at 0.6; class 1 rises now and then."""
    chain = StickyChain(10)
    often = np.array([0.6, 0.05] + [0.35 / 8] * 8)
    chain.forward(np.tile(often, (300, 1)))
    likelihood = chain.forward(np.array([[0.5, 0.3] + [0.2 / 8] * 8])).likelihood[0]
    assert likelihood.argmax() == 1


def test_candidates_are_the_likeliest_ten() -> None:
    mix = candidates(np.arange(1000.0))
    assert mix[990:].tolist() == [0.1] * 10
    assert mix.sum() == pytest.approx(1)
    assert candidates(np.arange(4.0)).tolist() == [0.25] * 4


def test_numbers_that_are_no_probabilities_are_refused() -> None:
    chain = StickyChain(4)
    state = chain.state()
    for name in state:
        for number in (-3.0, 1e30):
            with pytest.raises(ValueError, match="memory of classes"):
                chain.restore(state | {name: np.full_like(state[name], number)})
