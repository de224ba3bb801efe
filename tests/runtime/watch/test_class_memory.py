"""When neighbours in time speak for an image's class, and when they must not."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.events import ClassMemoryChanged, Event, Events
from zotta_edge.runtime.watch.class_memory import ClassMemory, ClassMemorySettings

Floats = NDArray[np.float32]
Labels = NDArray[np.intp]


def memory(classes: int = 10, events: Events | None = None) -> ClassMemory:
    return ClassMemory(classes, ClassMemorySettings(), events or Events())


def answers_to(labels: Labels, accuracy: float, classes: int = 10, seed: int = 0) -> Floats:
    """Logits that are right as often as they say, and now and then wrong."""
    rng = np.random.default_rng(seed)
    right = rng.random(len(labels)) < accuracy
    said = np.where(right, labels, rng.integers(0, classes, len(labels)))
    logits = rng.normal(size=(len(labels), classes)) + 4 * np.eye(classes)[said]
    return logits.astype(np.float32)


def through(memory: ClassMemory, logits: Floats, batch: int = 16) -> Floats:
    parts = range(0, len(logits), batch)
    return np.concatenate([memory(logits[start : start + batch]) for start in parts])


def accuracy(logits: Floats, labels: Labels) -> float:
    return float((logits.argmax(axis=1) == labels).mean())


@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize("right", [0.6, 0.75, 0.95])
def test_runs_are_recognised_and_used(right: float, batch: int) -> None:
    labels = np.repeat(np.random.default_rng(1).permutation(10), 40)
    logits = answers_to(labels, right)
    judge = memory()
    found = through(judge, logits, batch)
    assert judge.active
    missed = 1 - accuracy(logits, labels)
    assert 1 - accuracy(found, labels) < 0.8 * missed
    assert np.isfinite(found).all()


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("right", [0.1, 0.5, 0.95])
def test_a_stream_without_order_is_not_touched(right: float, classes: int) -> None:
    labels = np.random.default_rng(2).integers(0, classes, 500)
    logits = answers_to(labels, right, classes)
    np.testing.assert_array_equal(through(memory(classes), logits), logits)


def test_an_uneven_mix_without_order_is_not_touched() -> None:
    """Three classes of ten, and a model that says one of them too often."""
    labels = np.random.default_rng(3).choice([1, 1, 1, 5, 8], 500)
    logits = answers_to(labels, 0.5) + np.float32(2) * np.eye(10, dtype=np.float32)[5]
    np.testing.assert_array_equal(through(memory(), logits), logits)


def test_worlds_that_answer_differently_are_no_runs() -> None:
    """Every 40 images the model falls for another class, whatever it is shown."""
    labels = np.random.default_rng(4).integers(0, 10, 600)
    favourites = np.eye(10, dtype=np.float32)[np.arange(600) // 40 % 10]
    logits = answers_to(labels, 0.5) + np.float32(2) * favourites
    found = through(memory(), logits)
    assert accuracy(found, labels) >= accuracy(logits, labels) - 0.005


def test_it_lets_go_when_the_order_ends() -> None:
    rng = np.random.default_rng(5)
    labels = np.concatenate([np.repeat(np.arange(10), 30), rng.integers(0, 10, 200)])
    logits = answers_to(labels, 0.7)
    judge = memory()
    found = through(judge, logits)
    assert not judge.active
    np.testing.assert_array_equal(found[-150:], logits[-150:])


def test_one_class_for_ever_shows_no_order() -> None:
    logits = answers_to(np.zeros(300, int), 0.7)
    np.testing.assert_array_equal(through(memory(), logits), logits)


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_one_class_for_long_and_then_any_is_no_run(batch: int) -> None:
    """Ten thousand of one class are no reason to take the next images for it, or for each other."""
    rng = np.random.default_rng(6)
    after = rng.integers(0, 10, 64)
    logits = answers_to(np.concatenate([np.full(400, 3), after]), 1.0)
    found = through(memory(), logits, batch)[400:]
    assert np.count_nonzero(found.argmax(axis=1) != logits[400:].argmax(axis=1)) <= 4


def test_still_frames_neither_count_nor_change() -> None:
    """Ten scenes of 60 frames: each frame but the first repeats another."""
    labels = np.repeat(np.arange(10), 60)
    logits = np.repeat(answers_to(np.arange(10), 0.5), 60, axis=0)
    weights = np.tile(np.eye(60)[0], 10)
    judge = memory()
    for start in range(0, len(labels), 16):
        part = slice(start, start + 16)
        np.testing.assert_array_equal(judge(logits[part], weights[part]), logits[part])
    assert not judge.active


def test_a_camera_that_stops_gets_its_own_answers_back() -> None:
    labels = np.repeat(np.arange(10), 30)
    judge = memory()
    judge(answers_to(labels, 0.9), np.ones(300))
    assert judge.active
    scene = np.repeat(answers_to(np.array([4]), 1.0), 100, axis=0)
    found = judge(scene, np.zeros(100))
    np.testing.assert_array_equal(found[40:], scene[40:])


def test_batches_of_any_size_remember_the_same() -> None:
    """Later images of a batch count, too: answers may differ, what is remembered does not."""
    logits = answers_to(np.repeat(np.arange(10), 20), 0.7)
    one, many = memory(), memory()
    through(one, logits, 1)
    through(many, logits, 50)
    for name, array in one.state().items():
        np.testing.assert_allclose(array, many.state()[name], rtol=1e-6, atol=1e-12, err_msg=name)


def test_a_state_goes_on_bit_for_bit() -> None:
    logits = answers_to(np.repeat(np.arange(10), 30), 0.7)
    whole, first, second = memory(), memory(), memory()
    expected = through(whole, logits, 30)[150:]
    through(first, logits[:150], 30)
    second.restore(first.state())
    np.testing.assert_array_equal(through(second, logits[150:], 30), expected)
    assert second.status() == whole.status()


def test_changes_are_reported() -> None:
    events, received = Events(), list[Event]()
    events.subscribe(received.append)
    rng = np.random.default_rng(5)
    labels = np.concatenate([np.repeat(np.arange(10), 30), rng.integers(0, 10, 200)])
    through(memory(events=events), answers_to(labels, 0.9))
    assert all(isinstance(event, ClassMemoryChanged) for event in received)
    assert [event.to_dict()["active"] for event in received] == [True, False]
    assert "classes come in runs" in received[0].reason


def test_answers_that_are_not_finite_leave_no_trace() -> None:
    judge = memory()
    before = judge.state()
    judge(np.full((4, 10), np.nan, np.float32))
    for name, array in judge.state().items():
        np.testing.assert_array_equal(array, before[name])
