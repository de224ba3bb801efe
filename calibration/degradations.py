"""Home-made ways to spoil an image, to see on source images what a method regains.

None of them is a corruption of the benchmark, so that what is chosen here says something there.
"""

from collections.abc import Callable, Mapping

import cv2
import numpy as np
from numpy.random import Generator

from zotta_edge.format import Floats
from zotta_edge.runtime.io.images import Image


def _night(image: Floats, rng: Generator) -> Floats:
    noise = rng.normal(0, 0.03, image.shape).astype(np.float32)
    return np.float32(0.35) * image ** np.float32(1.4) + noise


def _haze(image: Floats, rng: Generator) -> Floats:
    return np.float32(0.4) * image + np.float32(0.5)


def _grain(image: Floats, rng: Generator) -> Floats:
    return image + rng.uniform(-0.3, 0.3, image.shape).astype(np.float32)


def _smear(image: Floats, rng: Generator) -> Floats:
    size = max(3, round(min(image.shape[:2]) / 12))
    return _as_image(cv2.blur(image, (size, size)), image)


def _coarse(image: Floats, rng: Generator) -> Floats:
    height, width = image.shape[:2]
    small = cv2.resize(image, (-(-width // 3), -(-height // 3)), interpolation=cv2.INTER_AREA)
    return _as_image(cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR), image)


def _stripes(image: Floats, rng: Generator) -> Floats:
    rows = np.sign(np.sin(np.arange(len(image)) * 1.6)).astype(np.float32)
    striped: Floats = image + np.float32(0.15) * rows[:, None, None]
    return striped


DEGRADATIONS: Mapping[str, Callable[[Floats, Generator], Floats]] = {
    "night": _night,
    "haze": _haze,
    "grain": _grain,
    "smear": _smear,
    "coarse": _coarse,
    "stripes": _stripes,
}


def degraded(images: Image, name: str, seed: int = 0) -> Image:
    """Each of the images spoiled in one way, uint8 as before.

    >>> grey = np.full((1, 32, 32, 3), 100, np.uint8)
    >>> int(degraded(grey, "haze")[0, 0, 0, 0])
    168
    """
    rng, spoil = np.random.default_rng(seed), DEGRADATIONS[name]
    floats = (image.astype(np.float32) / 255 for image in images)
    spoiled = [np.clip(spoil(image, rng), 0, 1) for image in floats]
    codes: Image = np.rint(255 * np.stack(spoiled)).astype(np.uint8)
    return codes


def _as_image(values: Floats, image: Floats) -> Floats:
    """OpenCV drops the axis of a single channel."""
    shaped: Floats = values.reshape(image.shape)
    return shaped
