"""Which images are new, and which repeat what was seen."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.drift import RunningMean
from zotta_edge.runtime.watch.novelty import Novelty
from zotta_edge.runtime.watch.statistics import Source

CHANNELS = 48


def novelty() -> Novelty:
    source = Source(np.zeros(CHANNELS), np.ones(CHANNELS), 100, np.array([CHANNELS]))
    return Novelty(source, Settings())


def images(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(count, CHANNELS)).astype(np.float32)


def test_different_images_are_new() -> None:
    assert novelty().weigh([images(100)]).tolist() == [1.0] * 100


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_frames_of_one_scene_are_one_sample(noise: float) -> None:
    frames = np.repeat(images(1), 200, axis=0) + noise * images(200, seed=1)
    assert novelty().weigh([frames]).sum() == 1


def test_a_scene_that_returns_is_known() -> None:
    judge, scenes = novelty(), images(4)
    judge.weigh([scenes])
    assert judge.weigh([scenes[::-1]]).sum() == 0


def test_a_scene_is_forgotten_after_many_others() -> None:
    judge, scene = novelty(), images(1)
    judge.weigh([scene])
    judge.weigh([images(Settings().remembered, seed=1)])
    assert judge.weigh([scene]).sum() == 1


def test_what_was_seen_is_saved() -> None:
    judge, other = novelty(), novelty()
    judge.weigh([images(40)])
    other.restore(judge.state())
    again = np.concatenate([images(40), images(8, seed=1)])
    assert judge.weigh([again]).tolist() == other.weigh([again]).tolist()


def test_repeats_do_not_make_a_mean_surer() -> None:
    running = RunningMean(64, CHANNELS)
    running.add(images(2), np.array([1.0, 0.0]))
    running.add(images(30, seed=1), np.zeros(30))
    assert (running.weight, running.variance) == (1.0, 1.0)
    np.testing.assert_allclose(running.mean, images(2)[0])


def test_what_a_stream_no_longer_shows_is_forgotten() -> None:
    running = RunningMean(64, CHANNELS)
    running.add(images(64))
    for _ in range(100):
        running.add(images(4), np.zeros(4))
    assert running.weight < 1
