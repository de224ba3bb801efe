"""Ways to spoil a picture: seeded, of the same shape, and none that results are reported on."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.calibration.copies import Copies
from zotta_edge.calibration.spoiling import DEGRADATIONS, RELATIVES, degrade, drawn
from zotta_edge.corruptions import CORRUPTIONS

Image = NDArray[np.uint8]


def scene(side: int, channels: int) -> Image:
    """A few shapes before a gradient."""
    rows, columns = np.mgrid[:side, :side] / side
    image = 0.3 + 0.4 * columns + 0.3 * ((rows - 0.5) ** 2 + (columns - 0.4) ** 2 < 0.06)
    tinted = image[..., None] * np.linspace(0.7, 1, channels)
    return (255 * tinted.clip(0, 1)).astype(np.uint8)


@pytest.mark.parametrize("name", DEGRADATIONS)
@pytest.mark.parametrize(("side", "channels"), [(32, 1), (96, 3)])
def test_every_degradation(name: str, side: int, channels: int) -> None:
    image = scene(side, channels)
    spoilt = degrade(image, [name], [0.8], seed=3)
    assert spoilt.shape == image.shape
    assert spoilt.dtype == np.uint8
    np.testing.assert_array_equal(spoilt, degrade(image, [name], [0.8], seed=3))
    colours = {"cast", "saturation", "fringe", "colour_noise"}
    if channels == 3 or name not in colours:
        assert np.abs(spoilt.astype(int) - image).mean() > 0.2
    np.testing.assert_array_equal(image, scene(side, channels))  # left alone


def test_none_is_reported_on() -> None:
    assert not set(DEGRADATIONS) & set(CORRUPTIONS)
    assert set(RELATIVES) <= set(DEGRADATIONS)
    assert set(RELATIVES.values()) <= set(CORRUPTIONS)


def test_some_images_are_spoilt_twice() -> None:
    rng = np.random.default_rng(0)
    counts = [len(drawn(rng)[0]) for _ in range(400)]
    assert 0.2 < np.mean(np.array(counts) == 2) < 0.4


def test_copies_do_not_depend_on_how_they_are_asked_for() -> None:
    copies = Copies(np.stack([scene(32, 3)] * 4), times=2, seed=1)
    whole = copies[0 : len(copies)]
    np.testing.assert_array_equal(whole[:4], copies.images)
    np.testing.assert_array_equal(whole[5:9], copies[5:9])
    assert {copies.kind(row) for row in range(4)} == {""}
    assert {copies.kind(row) for row in range(4, 12)} <= {"", *DEGRADATIONS}
