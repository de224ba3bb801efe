"""Sensors and coding: images [H, W, C] from 0 to 1 and a strength from 0 to 1 in, an image out."""

import cv2
import numpy as np
from numpy.random import Generator

from zotta_edge.calibration.spoiling.fields import Spoilt, blurred, pixels
from zotta_edge.format import Floats


def noise(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Uniform, Laplacian or triangular, of each colour or of all."""
    shape = x.shape if rng.random() < 0.75 else (*x.shape[:2], 1)
    draw = rng.integers(3)
    if draw == 0:
        values = rng.uniform(-1.73, 1.73, shape)
    else:
        values = rng.laplace(0, 0.71, shape) if draw == 1 else rng.triangular(-2.45, 0, 2.45, shape)
    return x + (0.03 + 0.42 * t) * values.astype(np.float32)


def speckle(x: Floats, t: float, rng: Generator) -> Spoilt:
    return x + x * (0.1 + 0.6 * t) * rng.standard_normal(x.shape, dtype=np.float32)


def grain(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Noise that is wider than a pixel."""
    values = blurred(rng.standard_normal(x.shape, dtype=np.float32), pixels(x, rng.uniform(1, 3)))
    return x + (0.05 + 0.3 * t) * values / max(float(values.std()), 1e-6)


def colour_noise(x: Floats, t: float, rng: Generator) -> Spoilt:
    values = rng.standard_normal(x.shape, dtype=np.float32)
    return x + (0.05 + 0.5 * t) * (values - values.mean(axis=2, keepdims=True))


def salt_pepper(x: Floats, t: float, rng: Generator) -> Spoilt:
    shape = x.shape if rng.random() < 0.5 else (*x.shape[:2], 1)
    hit = rng.random(shape) < 0.01 + 0.26 * t
    value = (rng.random(shape) < 0.5) if rng.random() < 0.7 else rng.random(shape)
    return np.where(hit, value, x)


def lost_lines(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Rows, or columns, that were not read out."""
    axis = int(rng.integers(2))
    shape = [1, 1, 1]
    shape[axis] = x.shape[axis]
    lost = rng.random(shape) < 0.02 + 0.3 * t
    return np.where(lost, np.float32(rng.random()), x)


def stripes(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Every row read out at another level."""
    return x + 0.5 * t * rng.standard_normal((x.shape[0], 1, 1), dtype=np.float32)


def interlace(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Every other row from a moment later."""
    y = x.copy()
    y[1::2] = np.roll(x[1::2], max(1, round(pixels(x, 2 + 14 * t))), axis=1)
    return y


def blocks(x: Floats, t: float, rng: Generator) -> Spoilt:
    how = cv2.INTER_AREA if rng.random() < 0.5 else cv2.INTER_LINEAR
    return _resized_twice(x, pixels(x, 1.5 + 4.0 * t), how, cv2.INTER_NEAREST)


def coarse(x: Floats, t: float, rng: Generator) -> Spoilt:
    return _resized_twice(x, pixels(x, 1.5 + 4.5 * t), cv2.INTER_AREA, cv2.INTER_LINEAR)


def _resized_twice(x: Floats, by: float, down: int, up: int) -> Spoilt:
    height, width = x.shape[:2]
    small = max(2, int(width / max(by, 1.2))), max(2, int(height / max(by, 1.2)))
    few = cv2.resize(x, small, interpolation=down)
    return cv2.resize(few, (width, height), interpolation=up).reshape(x.shape)


def posterize(x: Floats, t: float, rng: Generator) -> Spoilt:
    levels = 2 + int(6 * (1 - t))
    return np.round(x * levels) / levels


def dither(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Few levels, with the ordered pattern that hides it."""
    levels = 1 + int(5 * (1 - t))
    pattern = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]]) / 16
    height, width = x.shape[:2]
    tiled = np.tile(pattern, (-(-height // 4), -(-width // 4)))[:height, :width, None]
    return np.floor(x * levels + tiled) / levels


def transform_coding(x: Floats, t: float, rng: Generator) -> Spoilt:
    """8 x 8 cosines in coarse steps of one size: a cousin of JPEG, without its tables."""
    step, side = 0.1 + 0.9 * t, 8
    rows, columns = (size // side for size in x.shape[:2])
    whole = x[: rows * side, : columns * side]
    tiles = whole.reshape(rows, side, columns, side, -1).transpose(0, 2, 4, 1, 3)
    coded = np.round(_COSINES @ tiles @ _COSINES.T / step) * step
    y = x.copy()
    y[: rows * side, : columns * side] = (
        (_COSINES.T @ coded @ _COSINES).transpose(0, 3, 1, 4, 2).reshape(whole.shape)
    )
    return y


_PLACE = np.arange(8)
_COSINES = np.cos(np.pi / 8 * (_PLACE + 0.5) * _PLACE[:, None]).astype(np.float32)
_COSINES *= np.where(_PLACE[:, None] == 0, np.sqrt(1 / 8), 0.5).astype(np.float32)
