"""The image filters: what each takes out, and what it leaves alone."""

from dataclasses import replace

import numpy as np
import pytest
from pixels import PIXELS, P, normalized

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters


def as_pixels(batch: Floats) -> Floats:
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (P.mean, P.std))
    pixels: Floats = batch * std + mean
    return pixels


@pytest.fixture
def textured() -> Floats:
    return np.random.default_rng(0).uniform(0.2, 0.8, (4, 3, 64, 64)).astype(np.float32)


def test_as_is_costs_nothing(textured: Floats) -> None:
    assert Filters(P, PIXELS)(AS_IS, textured) is textured


@pytest.mark.parametrize("name", ["smooth", "median", "sharpen"])
def test_an_even_image_stays_as_it_is(name: str) -> None:
    even = normalized(np.full((2, 3, 64, 64), 0.7))
    np.testing.assert_allclose(Filters(P, PIXELS)(name, even), even, atol=1e-5)


def test_smoothing_is_a_gaussian() -> None:
    """A point becomes exp(-r^2 / 2 sigma^2), to two sigma; at 64 pixels sigma is 0.73."""
    point = np.zeros((1, 3, 64, 64))
    point[..., 32, 32] = 1
    spread = as_pixels(Filters(P, PIXELS)("smooth", normalized(point)))[0, 0]
    sigma = (64 / 224) ** 0.25
    line = np.exp(-np.square(np.arange(-2, 3)) / (2 * sigma**2))
    line /= line.sum()
    np.testing.assert_allclose(spread[30:35, 30:35], np.outer(line, line), atol=1e-5)


def test_the_median_takes_out_single_pixels() -> None:
    salted = np.full((1, 3, 64, 64), 0.4)
    salted[..., ::4, ::4] = 1
    cleaned = as_pixels(Filters(P, PIXELS)("median", normalized(salted)))
    np.testing.assert_allclose(cleaned, 0.4, atol=1e-5)


def test_sharpening_undoes_some_of_a_blur(textured: Floats) -> None:
    filters, wide = Filters(P, PIXELS), np.kron(textured[:, :, ::8, ::8], np.ones((8, 8)))
    blurred = filters("smooth", filters("smooth", normalized(wide)))
    before, after = (
        np.abs(as_pixels(batch) - wide).mean() for batch in (blurred, filters("sharpen", blurred))
    )
    edges = [np.abs(np.diff(as_pixels(b))).max() for b in (blurred, filters("sharpen", blurred))]
    assert edges[1] > 1.3 * edges[0]
    assert after < 2 * before


def test_contrast_is_that_of_the_source(textured: Floats) -> None:
    hazy = 0.3 * textured + 0.6
    levelled = as_pixels(Filters(P, PIXELS)("contrast", normalized(hazy)))
    for image in levelled:
        assert image.mean() == pytest.approx(0.5, abs=0.01)
        assert image.std() == pytest.approx(0.2, abs=0.01)


def test_contrast_needs_to_know_the_source() -> None:
    assert Filters(P, None).names == (AS_IS, "smooth", "median", "sharpen")
    assert Filters(P, PIXELS).names[-1] == "contrast"


@pytest.mark.parametrize("name", ["sharpen", "contrast"])
def test_no_pixel_leaves_black_and_white(name: str) -> None:
    halves = np.zeros((1, 3, 64, 64))
    halves[..., 32:] = 1
    pixels = as_pixels(Filters(P, (0.5, 0.9))(name, normalized(halves)))
    assert pixels.min() >= -1e-6
    assert pixels.max() <= 1 + 1e-6


@pytest.mark.parametrize("name", Filters(P, PIXELS).names)
def test_channels_may_come_last(name: str, textured: Floats) -> None:
    last = replace(P, layout="NHWC")
    there = Filters(last, PIXELS)(name, np.ascontiguousarray(textured.transpose(0, 2, 3, 1)))
    here = Filters(P, PIXELS)(name, textured)
    np.testing.assert_allclose(there.transpose(0, 3, 1, 2), here, atol=1e-5)


@pytest.mark.parametrize("name", Filters(P, PIXELS).names)
def test_the_batch_itself_is_not_touched(name: str, textured: Floats) -> None:
    kept = textured.copy()
    Filters(P, PIXELS)(name, textured)
    np.testing.assert_array_equal(textured, kept)


def test_images_are_filtered_one_by_one(textured: Floats) -> None:
    filters = Filters(P, PIXELS)
    for name in filters.names:
        together = filters(name, textured)
        alone = np.concatenate([filters(name, textured[i : i + 1]) for i in range(len(textured))])
        np.testing.assert_array_equal(together, alone)
