"""Optics and motion: images [H, W, C] from 0 to 1 and a strength from 0 to 1 in, an image out."""

import cv2
import numpy as np
from numpy.random import Generator

from zotta_edge.calibration.spoiling.fields import (
    Spoilt,
    blurred,
    convolved,
    coordinates,
    displaced,
    field,
    pixels,
    streak,
)
from zotta_edge.format import Floats


def box_blur(x: Floats, t: float, rng: Generator) -> Spoilt:
    side = 1 + 2 * round(pixels(x, 1 + 6 * t))
    return cv2.blur(x, (side, side)).reshape(x.shape)


def gauss_blur(x: Floats, t: float, rng: Generator) -> Spoilt:
    return blurred(x, pixels(x, 0.5 + 5 * t))


def shake(x: Floats, t: float, rng: Generator) -> Spoilt:
    bend = rng.uniform(-0.5, 0.5)
    return convolved(x, streak(pixels(x, 3 + 11 * t), rng.uniform(0, np.pi), bend))


def spin(x: Floats, t: float, rng: Generator) -> Spoilt:
    height, width = x.shape[:2]
    centre = (width / 2 * rng.uniform(0.7, 1.3), height / 2 * rng.uniform(0.7, 1.3))
    angles = np.linspace(-1, 1, 9) * (1 + 6 * t)
    turns = [cv2.getRotationMatrix2D(centre, float(angle), 1) for angle in angles]
    seen = [cv2.warpAffine(x, m, (width, height), borderMode=cv2.BORDER_REFLECT) for m in turns]
    return np.mean(seen, axis=0).reshape(x.shape)


def ghost(x: Floats, t: float, rng: Generator) -> Spoilt:
    """The scene twice, a little apart."""
    columns, rows = coordinates(x)
    far, angle = pixels(x, 3 + 15 * t), rng.uniform(0, 2 * np.pi)
    columns, rows = columns + far * np.cos(angle), rows + far * np.sin(angle)
    other = displaced(x, columns.astype(np.float32), rows.astype(np.float32))
    share = rng.uniform(0.3, 0.5)
    return (1 - share) * x + share * other


def fringe(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Colours out of register."""
    columns, rows = coordinates(x)
    planes = []
    for plane in range(x.shape[2]):
        dx, dy = rng.uniform(-1, 1, 2) * pixels(x, 1 + 8 * t)
        there = (columns + dx).astype(np.float32), (rows + dy).astype(np.float32)
        planes.append(displaced(np.ascontiguousarray(x[..., plane : plane + 1]), *there))
    return np.concatenate(planes, axis=2)


def warp(x: Floats, t: float, rng: Generator) -> Spoilt:
    columns, rows = coordinates(x)
    cells, far = int(rng.integers(6, 16)), np.float32(pixels(x, 1 + 7 * t))
    dx, dy = (far * field(x, cells, rng)[..., 0] for _ in range(2))
    return displaced(x, columns + dx, rows + dy)


def jitter(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Pixels from anywhere near, as through rough glass."""
    columns, rows = coordinates(x)
    far = pixels(x, 0.7 + 3.5 * t)
    dx, dy = (rng.uniform(-far, far, columns.shape).astype(np.float32) for _ in range(2))
    return blurred(displaced(x, columns + dx, rows + dy), pixels(x, rng.uniform(0.3, 1.2)))


def smear(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Sharp in places, out of focus in others: grease on the lens."""
    mask = np.clip(3 * (field(x, 3, rng) + 2 * t - 1) + 0.5, 0, 1)
    return x * (1 - mask) + mask * blurred(x, pixels(x, 2 + 6 * t))


def ringing(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Sharpened too much."""
    return x + (1 + 4 * t) * (x - blurred(x, pixels(x, rng.uniform(1, 3))))
