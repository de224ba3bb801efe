"""What the guard lets through, undoes and counts."""

import logging

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.guard import Guard

SOURCE = np.array([3.0, 4.0], np.float32)  # of norm 5
CLASSES = 10


def guard(**settings: object) -> Guard:
    return Guard(Settings(**settings), SOURCE, CLASSES)


def answers(labels: NDArray[np.int64], confidence: float) -> NDArray[np.float32]:
    return (confidence * np.eye(CLASSES)[labels]).astype(np.float32)


def test_a_long_step_is_shortened() -> None:
    watch = guard(max_step=0.1, max_distance=10.0)
    moved = watch.bounded(SOURCE, SOURCE + np.array([5, 0], np.float32), 1)
    np.testing.assert_allclose(moved, [3.5, 4.0], rtol=1e-6)
    assert watch.events["shortened"] == 1
    short = SOURCE + np.array([0.1, 0], np.float32)
    assert watch.bounded(SOURCE, short, 1) is short


def test_the_longest_step_grows_with_what_stands_behind_it() -> None:
    source = np.ones(500, np.float32)
    far = source + 10
    lengths = {
        (pairs, batch): float(np.linalg.norm(moved - source))
        for pairs in (5, 20)
        for batch in (1, 16)
        for moved in [Guard(Settings(pairs=pairs), source, CLASSES).bounded(source, far, batch)]
    }
    assert lengths[20, 1] == pytest.approx(2 * lengths[5, 1], rel=1e-4)
    assert lengths[5, 16] == pytest.approx(4 * lengths[5, 1], rel=1e-4)


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_per_sample_estimates_are_trusted_further(batch: int) -> None:
    """By as much at every batch size: 64 updates of one sample add up to one of 64."""
    source = np.ones(500, np.float32)

    def reached(estimator: str, **limits: float) -> float:
        watch = Guard(Settings(estimator=estimator, pairs=1, **limits), source, CLASSES)
        return watch.distance(watch.bounded(source, source + 10, batch))

    for limits in ({"max_step": 0.1, "max_distance": 99.0}, {"max_step": 9.0}):
        shared, own = (reached(one, **limits) for one in ("shared", "per-sample"))
        assert own == pytest.approx(4 * shared, rel=1e-4)


def test_the_distance_from_the_source_is_bounded() -> None:
    watch = guard(max_step=10.0, max_distance=0.2)
    moved = watch.bounded(SOURCE, SOURCE + np.array([0, 3], np.float32), 1)
    assert watch.distance(moved) == pytest.approx(0.2)
    np.testing.assert_allclose(moved, [3.0, 5.0], rtol=1e-6)
    assert watch.events["bounded"] == 1


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    watch = guard()
    moved = watch.bounded(SOURCE, np.array([np.nan, 1], np.float32), 1)
    np.testing.assert_array_equal(moved, SOURCE)


def test_rollback_backs_off_and_recovers() -> None:
    watch = guard(max_step=0.1, max_distance=10.0, backoff=0.5)
    far = SOURCE + np.array([5, 0], np.float32)
    assert not watch.accepts(before=1.0, after=1.1)
    assert watch.events["rollback"] == 1
    assert watch.bounded(SOURCE, far, 1)[0] == pytest.approx(3.25)  # half as far
    for _ in range(10):
        assert watch.accepts(before=1.0, after=0.9)
    assert watch.bounded(SOURCE, far, 1)[0] == pytest.approx(3.5)


def test_an_objective_that_is_not_a_number_is_a_rise() -> None:
    assert not guard().accepts(before=1.0, after=float("nan"))


def test_tolerance() -> None:
    assert guard(tolerance=0.2).accepts(before=1.0, after=1.1)
    assert guard(tolerance=0.2).accepts(before=-1.0, after=-0.9)


def test_one_class_taking_over_while_entropy_falls_is_a_collapse(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = guard()
    watch.observe(answers(np.arange(64) % CLASSES, confidence=1.0), at_source=True)
    assert watch.suspect() is None
    taken_over = answers(np.full(64, 3), confidence=9.0)
    watch.observe(taken_over, at_source=False)
    assert watch.suspect() == 3
    with caplog.at_level(logging.WARNING):
        assert watch.convicts(3, source_logits=answers(np.arange(64) % CLASSES, 1.0))
    assert watch.events["collapse"] == 1
    assert "class 3 took over" in caplog.text


def test_one_class_that_the_source_sees_too_is_no_collapse() -> None:
    watch = guard()
    watch.observe(answers(np.arange(64) % CLASSES, confidence=1.0), at_source=True)
    one_class = answers(np.full(64, 3), confidence=9.0)
    watch.observe(one_class, at_source=False)
    assert watch.suspect() == 3
    assert not watch.convicts(3, source_logits=one_class)
    assert watch.events["collapse"] == 0
    assert watch.suspect() is None  # not asked again at once


def test_a_collapse_is_seen_at_batch_size_one() -> None:
    watch = guard()
    for label in range(100):
        watch.observe(answers(np.array([label % CLASSES]), confidence=1.0), at_source=True)
    seen = 0
    while watch.suspect() is None and seen < 500:
        watch.observe(answers(np.array([3]), confidence=9.0), at_source=False)
        seen += 1
    assert seen <= 128


def test_confident_answers_in_many_classes_are_no_collapse() -> None:
    watch = guard()
    watch.observe(answers(np.arange(64) % CLASSES, confidence=1.0), at_source=True)
    watch.observe(answers(np.arange(64) % CLASSES, confidence=20.0), at_source=False)
    assert watch.suspect() is None


def test_switched_off_it_lets_everything_pass() -> None:
    watch = guard(guard=False)
    far = SOURCE * 100
    assert watch.bounded(SOURCE, far, 1) is far
    assert watch.accepts(before=1.0, after=2.0)
    watch.observe(answers(np.arange(64) % CLASSES, 1.0), at_source=True)
    watch.observe(answers(np.full(64, 3), 9.0), at_source=False)
    assert watch.suspect() is None


def test_state_goes_round() -> None:
    watch, other = guard(), guard()
    watch.accepts(1.0, 2.0)
    watch.observe(answers(np.arange(7), 2.0), at_source=True)
    other.restore(watch.state())
    for name, array in watch.state().items():
        np.testing.assert_array_equal(array, other.state()[name])
    assert other.events == watch.events
