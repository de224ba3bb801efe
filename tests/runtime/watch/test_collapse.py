"""When one class has taken over, and when it only seems so."""

import logging

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.events import Events
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.collapse import Collapse

CLASSES = 10


def collapse(**settings: object) -> Collapse:
    return Collapse(CLASSES, Settings(**settings), Events())  # type: ignore[arg-type]


def answers(labels: NDArray[np.int64], confidence: float) -> NDArray[np.float32]:
    return (confidence * np.eye(CLASSES)[labels]).astype(np.float32)


def test_one_class_taking_over_while_entropy_falls_is_a_collapse(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = collapse()
    watch.observe(answers(np.arange(64) % CLASSES, confidence=1.0), at_source=True)
    assert watch.suspect() is None
    taken_over = answers(np.full(64, 3), confidence=9.0)
    watch.observe(taken_over, at_source=False)
    assert watch.suspect() == 3
    with caplog.at_level(logging.WARNING):
        assert watch.confirms(3, source_logits=answers(np.arange(64) % CLASSES, 1.0))
    assert "class 3 took over" in caplog.text


def test_one_class_that_the_source_sees_too_is_no_collapse() -> None:
    watch = collapse()
    watch.observe(answers(np.arange(64) % CLASSES, confidence=1.0), at_source=True)
    one_class = answers(np.full(64, 3), confidence=9.0)
    watch.observe(one_class, at_source=False)
    assert watch.suspect() == 3
    assert not watch.confirms(3, source_logits=one_class)
    assert watch.suspect() is None  # not asked again at once


def test_a_collapse_is_seen_at_batch_size_one() -> None:
    watch = collapse()
    for label in range(100):
        watch.observe(answers(np.array([label % CLASSES]), confidence=1.0), at_source=True)
    seen = 0
    while watch.suspect() is None and seen < 500:
        watch.observe(answers(np.array([3]), confidence=9.0), at_source=False)
        seen += 1
    assert seen <= 128


def test_confident_answers_in_many_classes_are_no_collapse() -> None:
    watch = collapse()
    watch.observe(answers(np.arange(64) % CLASSES, confidence=1.0), at_source=True)
    watch.observe(answers(np.arange(64) % CLASSES, confidence=20.0), at_source=False)
    assert watch.suspect() is None


def test_switched_off_it_suspects_nobody() -> None:
    watch = collapse(guard=False)
    watch.observe(answers(np.arange(64) % CLASSES, 1.0), at_source=True)
    watch.observe(answers(np.full(64, 3), 9.0), at_source=False)
    assert watch.suspect() is None


def test_state_goes_round() -> None:
    watch, other = collapse(), collapse()
    watch.observe(answers(np.arange(7), 2.0), at_source=True)
    other.restore(watch.state())
    for name, array in watch.state().items():
        np.testing.assert_array_equal(array, other.state()[name])
