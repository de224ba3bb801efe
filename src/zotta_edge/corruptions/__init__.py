"""The corruptions of ImageNet-C and CIFAR-10-C, seeded, with NumPy and OpenCV alone.

    >>> from zotta_edge.corruptions import CORRUPTIONS, corrupt
    >>> noisy = corrupt(image, "gaussian_noise", severity=5, seed=0)   # uint8 [H, W, 3] or [H, W]

Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019. Frost uses drawn panes of ice instead of photographs.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zotta_edge.corruptions import blur, digital, noise, weather
from zotta_edge.corruptions.constants import CONSTANTS, Scale
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats

__all__ = ["ALL", "CORRUPTIONS", "EXTRA", "Scale", "corrupt", "corrupt_batch", "corrupt_stream"]

Image = NDArray[np.uint8]
Seed = int | Sequence[int] | Generator

_FUNCTIONS: dict[str, Callable[..., Floats]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": digital.saturate,
}
ALL = tuple(_FUNCTIONS)
CORRUPTIONS = ALL[:15]  # the benchmark
EXTRA = ALL[15:]  # for calibration and validation

_SMALL = 64  # images up to this side get CIFAR's constants


def corrupt(
    image: Image, name: str, severity: int = 5, seed: Seed = 0, scale: Scale | None = None
) -> Image:
    """Corrupt one uint8 image [H, W], [H, W, 1] or [H, W, 3] (RGB); the shape stays.

    `scale` chooses ImageNet's or CIFAR's constants; by default the image's size does (64 pixels).
    """
    check(name, severity)
    image = _valid(image)
    scale = scale or ("cifar" if max(image.shape[:2]) <= _SMALL else "imagenet")
    x = image.reshape(*image.shape[:2], -1).astype(np.float32) / np.float32(255)
    rng = np.random.default_rng(seed)
    y = _FUNCTIONS[name](x, rng, *CONSTANTS[scale][name][severity - 1])
    # Truncated as published; the small term keeps an unchanged pixel from falling by one level.
    levels = np.clip(y, 0, 1) * np.float32(255) + np.float32(1e-3)
    return levels.astype(np.uint8).reshape(image.shape)


def corrupt_batch(
    images: Sequence[Image] | Image,
    name: str,
    severity: int = 5,
    seed: int = 0,
    workers: int = 2,
    scale: Scale | None = None,
) -> Image | list[Image]:
    """Corrupt many images; image i gets the seed [seed, i], whatever the number of workers.

    An array [B, H, W, C] gives an array, a sequence gives a list.
    """
    corrupted = list(corrupt_stream(images, name, severity, seed, workers, scale))
    return np.stack(corrupted) if isinstance(images, np.ndarray) and corrupted else corrupted


def corrupt_stream(
    images: Sequence[Image] | Image | Iterator[Image],
    name: str,
    severity: int = 5,
    seed: int = 0,
    workers: int = 2,
    scale: Scale | None = None,
) -> Iterator[Image]:
    """`corrupt_batch` for streams: in order, with a few images a worker in memory at a time."""
    check(name, severity)
    numbered = enumerate(images)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        # NumPy's generators and OpenCV release the GIL: threads suffice, and nothing is copied.
        while chunk := list(islice(numbered, 8 * max(1, workers))):
            yield from pool.map(
                lambda item: corrupt(item[1], name, severity, [seed, item[0]], scale), chunk
            )


def check(name: str, severity: int) -> None:
    """Refuse an unknown corruption or severity."""
    if name not in _FUNCTIONS:
        raise ZottaError(f"unknown corruption {name!r}: one of {', '.join(ALL)}")
    if severity not in range(1, 6):
        raise ZottaError(f"severity {severity} does not exist: 1 (mild) to 5 (severe)")


def _valid(image: Image) -> Image:
    image = np.asarray(image)
    shape = image.shape
    if (
        image.dtype != np.uint8
        or 0 in shape
        or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)))
    ):
        raise ZottaError(
            f"cannot corrupt an image of {image.dtype} {list(shape)}: expected uint8 "
            "[height, width], [height, width, 1] or [height, width, 3]"
        )
    return image
