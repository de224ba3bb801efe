"""How uneven a mix of classes counts as."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.methods.primed.class_mix import ClassMix
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.drift import RunningMean

CLASSES = 10


def mix_of(labels: NDArray[np.int64], confidence: float, shift: float = 9.0) -> ClassMix:
    mix = ClassMix(CLASSES, 100, lambda: shift, Settings())
    logits = (confidence * np.eye(CLASSES)[labels]).astype(np.float32)
    mix.observe(logits, np.ones(len(labels)))
    return mix


def test_an_even_mix_is_even() -> None:
    assert mix_of(np.arange(200) % CLASSES, 20.0).unevenness == pytest.approx(0, abs=1e-6)


def test_one_class_is_as_uneven_as_can_be() -> None:
    assert mix_of(np.zeros(200, int), 20.0).unevenness == pytest.approx(0.9, abs=0.01)


def test_unsure_answers_hardly_count() -> None:
    """Drift makes answers alike, too."""
    assert mix_of(np.zeros(200, int), 2.5).unevenness < 0.01


def test_noise_is_sampling_and_the_mix() -> None:
    running = RunningMean(64, 3)
    running.add(np.zeros((16, 3), np.float32))
    even, uneven = mix_of(np.arange(200) % CLASSES, 20.0), mix_of(np.zeros(200, int), 20.0)
    assert even.noise(running)(0.0) == pytest.approx(1 / 16 + 1 / 100)
    assert uneven.noise(running)(0.0) == pytest.approx(1 / 16 + 1 / 100 + uneven.unevenness)


def test_a_lack_of_spread_is_content_where_the_stem_has_not_drifted() -> None:
    few, many = np.arange(CLASSES), np.arange(200) % CLASSES
    assert mix_of(few, 20.0, shift=0.0).one_sidedness == pytest.approx(1)
    assert mix_of(few, 20.0, shift=9.0).one_sidedness == pytest.approx(0, abs=1e-6)
    assert mix_of(many, 20.0, shift=0.0).one_sidedness < 0.1  # the mix is known to be even


def test_a_lack_of_spread_is_content_where_few_classes_are_surely_seen() -> None:
    assert mix_of(np.zeros(200, int), 20.0).one_sidedness == pytest.approx(1, abs=0.01)
    assert mix_of(np.zeros(200, int), 2.5).one_sidedness < 0.05
