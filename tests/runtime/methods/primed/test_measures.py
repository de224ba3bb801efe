"""Measures of single images."""

import numpy as np
import pytest

from zotta_edge.format import Floats, Preprocessing
from zotta_edge.runtime.methods.primed.measures import Measures


def preprocessing(side: int, channels: int, layout: str = "NCHW") -> Preprocessing:
    return Preprocessing(side, side, (0.5,) * channels, (0.25,) * channels, layout=layout)  # type: ignore[arg-type]


def images(side: int, channels: int, count: int = 5) -> Floats:
    rng = np.random.default_rng(0)
    slow = rng.standard_normal((count, channels, side // 8, side // 8))
    return slow.repeat(8, axis=2).repeat(8, axis=3).astype(np.float32)


@pytest.mark.parametrize(("side", "channels"), [(32, 1), (32, 3), (96, 3), (224, 3)])
def test_an_image_is_measured_alone(side: int, channels: int) -> None:
    measures, batch = Measures(preprocessing(side, channels)), images(side, channels)
    together = measures(batch)
    assert together.shape == (5, measures.count)
    assert np.isfinite(together).all()
    for image, row in zip(batch, together, strict=True):
        np.testing.assert_allclose(measures(image[None])[0], row, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [32, 224])
def test_threads_change_no_bit(side: int) -> None:
    batch = images(side, 3, 11)
    one, three = (Measures(preprocessing(side, 3), threads)(batch) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_channels_may_come_last() -> None:
    batch = images(64, 3)
    first, last = (Measures(preprocessing(64, 3, layout)) for layout in ("NCHW", "NHWC"))
    np.testing.assert_allclose(first(batch), last(np.moveaxis(batch, 1, 3)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", [32, 224])
def test_noise_blur_and_dimming_are_seen(side: int) -> None:
    """Each moves some measure by more than different images differ."""
    import cv2

    rng = np.random.default_rng(1)
    measures, plain = Measures(preprocessing(side, 3)), images(side, 3, 16)
    spread = measures(plain).std(axis=0) + 1e-3
    blurred = np.stack(
        [cv2.blur(image.transpose(1, 2, 0), (5, 5)).transpose(2, 0, 1) for image in plain]
    )
    spoilt = {
        "noise": plain + rng.standard_normal(plain.shape).astype(np.float32),
        "blur": blurred,
        "dim": 0.2 * plain - 1.5,
    }
    for name, batch in spoilt.items():
        moved = np.abs(measures(batch).mean(axis=0) - measures(plain).mean(axis=0)) / spread
        assert moved.max() > 3, name
