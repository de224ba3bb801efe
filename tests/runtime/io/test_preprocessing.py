"""The network's input: against PIL where it is installed, against arithmetic everywhere."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from zotta_edge import ZottaError
from zotta_edge.format import Preprocessing
from zotta_edge.runtime.io.preprocessing import as_batch, fit, prepare, resample

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = Preprocessing(224, 224, MEAN, STD, resize=256, interpolation="bicubic")
RAW = Preprocessing(8, 8, (0.0, 0.0, 0.0), (1 / 255,) * 3)  # leaves pixel values as they are
GREY = Preprocessing(8, 8, (0.0,), (1 / 255,))


def noise(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_an_image_of_the_right_size_is_only_normalized() -> None:
    images = noise(2, 224, 224, 3)
    expected = (images / 255 - np.array(MEAN)) / np.array(STD)
    batch = prepare(images, IMAGENET)
    assert batch.dtype == np.float32
    assert batch.flags.c_contiguous
    assert np.abs(batch - expected.transpose(0, 3, 1, 2)).max() < 1e-6


def test_layout_nhwc() -> None:
    images = noise(2, 8, 8, 3)
    nhwc = Preprocessing(8, 8, MEAN, STD, layout="NHWC")
    nchw = Preprocessing(8, 8, MEAN, STD)
    assert np.array_equal(prepare(images, nhwc), prepare(images, nchw).transpose(0, 2, 3, 1))


def test_a_constant_image_stays_constant() -> None:
    for interpolation in ("bilinear", "bicubic", "area"):
        for size in ((30, 50), (3, 3), (901, 77)):
            image = np.full((*size, 3), 77, np.uint8)
            assert (resample(image, 24, 24, (20, 20), interpolation) == 77).all()


def test_whole_blocks_shrink_to_their_means() -> None:
    image = noise(32, 48, 3)
    means = image.reshape(16, 2, 24, 2, 3).mean(axis=(1, 3))
    shrunk = resample(image, 16, 24, (16, 24), "area")
    assert np.abs(shrunk - means).max() <= 0.5 + 1e-4


def test_the_crop_is_the_centre_of_the_resized_image() -> None:
    image = noise(60, 90, 3)
    whole = resample(image, 40, 60, (40, 60), "bicubic")
    centre = resample(image, 40, 60, (32, 32), "bicubic")
    assert np.array_equal(centre, whole[4:36, 14:46])


def test_shrinking_does_not_alias() -> None:
    stripes = np.zeros((256, 256, 1), np.uint8)
    stripes[:, ::2] = 255  # as a plain bilinear look-up sees it: black or white, never grey
    for interpolation in ("bilinear", "bicubic", "area"):
        shrunk = resample(stripes, 64, 64, (64, 64), interpolation)
        assert np.abs(shrunk[4:-4, 4:-4].astype(int) - 128).max() <= 2


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (1280, 720), (150, 100), (4000, 3001)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizing_is_pil_s(size: tuple[int, int], interpolation: str) -> None:
    pil = pytest.importorskip("PIL.Image")
    method = {"bilinear": pil.Resampling.BILINEAR, "bicubic": pil.Resampling.BICUBIC}[interpolation]
    coarse = pil.fromarray(noise(size[1] * 150 // min(size), size[0] * 150 // min(size), 3))
    image = coarse.resize(size, pil.Resampling.BICUBIC)  # detail as fine as a crop of 224 shows
    width, height = (256 * side // min(size) for side in size)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    expected = np.asarray(
        image.resize((width, height), method).crop((left, top, left + 224, top + 224))
    ).astype(int)
    ours = resample(np.asarray(image), height, width, (224, 224), interpolation)
    exact = max(size) < 2000  # larger ones are averaged in blocks first
    difference = np.abs(ours - expected)
    assert difference.mean() < (0.35 if exact else 1.0)  # PIL rounds after each direction
    assert np.percentile(difference, 99) <= (2 if exact else 4)


def test_images_of_many_sizes_make_one_batch() -> None:
    images = [noise(300, 400, 3), noise(224, 224), noise(100, 90, 1), noise(2000, 300, 3)]
    batch = prepare(images, IMAGENET)
    assert batch.shape == (4, 3, 224, 224)
    assert np.array_equal(batch[1:2], prepare([noise(224, 224)], IMAGENET))


def test_a_large_image_is_made_grey_in_parts() -> None:
    """Whole, one of 64 million pixels took 1 GB for a moment."""
    colour = noise(3000, 3000, 3)
    tracemalloc.start()
    grey = fit(colour, Preprocessing(3000, 3000, (0.5,), (0.5,)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 2**22
    whole = colour.astype(np.float64) @ [0.299, 0.587, 0.114]
    assert np.abs(grey[..., 0] - whole).max() <= 0.5 + 1e-4


def test_grey_for_a_colour_model_and_colour_for_a_grey_one() -> None:
    grey, colour = noise(8, 8), noise(8, 8, 3)
    three = prepare([grey], RAW)
    assert np.allclose(three, grey[None, None], atol=1e-4)
    luma = prepare([colour], GREY)
    expected = colour @ np.array([0.299, 0.587, 0.114])
    assert luma.shape == (1, 1, 8, 8)
    assert np.abs(luma[0, 0] - expected).max() <= 0.5 + 1e-4
    assert np.allclose(prepare(noise(5, 8, 8), GREY)[:, 0], noise(5, 8, 8), atol=1e-4)


def test_without_a_resize_the_image_is_squeezed_into_the_input() -> None:
    image = np.zeros((40, 20, 3), np.uint8)
    image[:20] = 200
    squeezed = prepare([image], RAW)[0, 0]
    assert squeezed[:3].min() > 199
    assert squeezed[-3:].max() < 1


def test_a_preprocessed_batch_passes_through() -> None:
    batch = np.random.default_rng(0).normal(size=(3, 3, 8, 8))
    assert np.array_equal(as_batch(batch, RAW), batch.astype(np.float32))
    assert np.array_equal(as_batch(noise(3, 8, 8, 3), RAW), prepare(noise(3, 8, 8, 3), RAW))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((2, 3, 9, 8), np.float32), r"\[batch, 3, 8, 8\], got \[2, 3, 9, 8\]"),
        (np.zeros((3, 8, 8), np.float32), "preprocessed batch"),
        (np.zeros((0, 3, 8, 8), np.float32), "preprocessed batch"),
        (np.full((1, 3, 8, 8), np.nan), "NaN or infinite"),
        (np.full((1, 3, 8, 8), np.inf, np.float32), "NaN or infinite"),
        (np.full((1, 3, 8, 8), 1e300), "NaN or infinite"),
        (noise(8, 8, 3), r"image\[None\]"),
        (noise(8, 8), r"image\[None\]"),
        ([], "got none"),
        ([np.zeros((8, 8, 3), np.int64)], "image 0 is int64"),
        ([noise(8, 8, 3), np.zeros((8, 8, 3), np.float32)], "image 1 is float32"),
        ([noise(8, 8, 2)], r"shape \(8, 8, 2\)"),
        ([noise(8, 0, 3)], r"shape \(8, 0, 3\)"),
        ([noise(2, 8, 8, 3)], r"shape \(2, 8, 8, 3\)"),
        (["a.jpg"], "image 0 is"),
        (np.zeros((1, 8, 8, 3), np.int32), "image 0 is int32"),
    ],
)
def test_what_is_not_a_batch_is_refused(bad: Any, message: str) -> None:
    with pytest.raises(ZottaError, match=message):
        as_batch(bad, RAW)


def test_a_crop_larger_than_the_resized_image_is_refused() -> None:
    with pytest.raises(ZottaError, match="smaller than its input"):
        prepare([noise(300, 300, 3)], Preprocessing(224, 224, MEAN, STD, resize=200))
