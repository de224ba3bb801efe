"""What the degradations are made of: smooth fields, lengths in pixels, coordinates."""

import math
from typing import Any

import numpy as np
from numpy.random import Generator

from zotta_edge.format import Floats

Spoilt = Any  # pixels of whatever floats; clipped and made float32 afterwards
SIZE = 224  # pixels, of images that lengths are given for; smaller ones hold more in a pixel


def pixels(image: Floats, length: float) -> float:
    """A length at 224 pixels, on this image."""
    return length * math.sqrt(min(1.0, min(image.shape[:2]) / SIZE))


def field(image: Floats, cells: int, rng: Generator) -> Floats:
    """A smooth random field [H, W, 1] with about `cells` bumps a side, within -1..1."""
    import cv2

    cells = min(cells, min(image.shape[:2]) // 2)
    coarse = rng.standard_normal((cells + 1, cells + 1)).astype(np.float32)
    fine = cv2.resize(coarse, image.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    bounded: Floats = fine / np.float32(np.abs(fine).max() + 1e-6)
    return bounded[..., None]


def coordinates(image: Floats) -> tuple[Floats, Floats]:
    """x and y of every pixel, [H, W] each."""
    height, width = image.shape[:2]
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return x, y


def displaced(image: Floats, x: Floats, y: Floats) -> Floats:
    """Each pixel taken from another place; [H, W, C] whatever OpenCV makes of one channel."""
    import cv2

    moved = cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(moved.reshape(image.shape))


def blurred(image: Floats, sigma: float) -> Floats:
    import cv2

    return np.asarray(cv2.GaussianBlur(image, (0, 0), max(sigma, 0.1)).reshape(image.shape))


def convolved(image: Floats, kernel: Floats) -> Floats:
    import cv2

    total = max(float(kernel.sum()), 1e-6)
    result = cv2.filter2D(image, -1, kernel / total, borderType=cv2.BORDER_REFLECT)
    return np.asarray(result.reshape(image.shape))


def streak(length: float, angle: float, bend: float = 0.0) -> Floats:
    """A kernel along a line of this half length, bent by so many radians over its length."""
    reach = max(1, round(length))
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    for step in np.linspace(-0.5, 0.5, 4 * reach + 1):
        turned, far = angle + bend * step, 2 * reach * step
        row, column = round(reach + far * math.sin(turned)), round(reach + far * math.cos(turned))
        kernel[min(max(row, 0), 2 * reach), min(max(column, 0), 2 * reach)] += 1
    return kernel
