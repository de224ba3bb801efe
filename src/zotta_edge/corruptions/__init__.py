"""The corruptions of ImageNet-C and CIFAR-10-C, seeded, with NumPy and OpenCV alone.

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
    """Corrupt an image.

    Parameters
    ----------
    image
        uint8 [H, W], [H, W, 1] or [H, W, 3] (RGB); the result has the same shape.
    name
        One of `ALL`.
    severity
        From 1, mild, to 5.
    seed
        The same seed gives the same image.
    scale
        Whose constants, ImageNet's or CIFAR's; None: CIFAR's for images up to 64 pixels.

    Examples
    --------
    >>> grey = np.full((32, 32, 3), 128, np.uint8)
    >>> noisy = corrupt(grey, "gaussian_noise", severity=5, seed=0)
    >>> noisy.shape, bool(noisy.std() > 10)
    ((32, 32, 3), True)
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
    """Corrupt many images.

    Parameters
    ----------
    images
        A sequence, which gives a list, or an array [B, H, W, C], which gives an array.
    name, severity, scale
        As for `corrupt`.
    seed
        Image i gets the seed [seed, i], for any number of workers.
    workers
        How many threads share the work.

    Examples
    --------
    >>> images = np.zeros((4, 32, 32, 3), np.uint8)
    >>> corrupt_batch(images, "fog", severity=3).shape
    (4, 32, 32, 3)
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
    """Corrupt a stream of images.

    The parameters are those of `corrupt_batch`. Images come in order, and only a few for each
    worker are in memory at a time.

    Examples
    --------
    >>> frames = (np.zeros((32, 32, 3), np.uint8) for _ in range(3))
    >>> [image.shape for image in corrupt_stream(frames, "snow")]
    [(32, 32, 3), (32, 32, 3), (32, 32, 3)]
    """
    check(name, severity)
    numbered = enumerate(images)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        # NumPy's generators and OpenCV release the GIL: threads suffice, and nothing is copied.
        while chunk := list(islice(numbered, 8 * max(1, workers))):
            yield from pool.map(
                lambda item: corrupt(item[1], name, severity, [seed, item[0]], scale), chunk
            )


def check(name: str, severity: int) -> None:
    """Refuse an unknown corruption or severity.

    Examples
    --------
    >>> check("fog", 6)
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: severity 6 does not exist: 1 (mild) to 5 (severe)
    """
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
