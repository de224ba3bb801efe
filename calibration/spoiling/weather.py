"""Weather and dirt: images [H, W, C] from 0 to 1 and a strength from 0 to 1 in, an image out."""

import cv2
import numpy as np
from numpy.random import Generator

from zotta_edge.calibration.spoiling.fields import (
    Spoilt,
    blurred,
    convolved,
    field,
    pixels,
    streak,
)
from zotta_edge.format import Floats


def flakes(x: Floats, t: float, rng: Generator) -> Spoilt:
    seeds = (rng.random((*x.shape[:2], 1)) < 0.002 + 0.02 * t).astype(np.float32)
    grown = cv2.dilate(seeds, np.ones((2, 2), np.uint8)).reshape(seeds.shape)
    soft = blurred(grown, pixels(x, rng.uniform(0.6, 2.5)))
    seen = convolved(soft, streak(pixels(x, 6), rng.uniform(0, np.pi)))
    white = np.clip(seen / (seen.max() + 1e-6) * (0.6 + t), 0, 1)
    pale = 0.35 * t
    return np.maximum(x * (1 - pale) + pale * (0.5 + 0.5 * x.mean(axis=2, keepdims=True)), white)


def rain(x: Floats, t: float, rng: Generator) -> Spoilt:
    seeds = (rng.random((*x.shape[:2], 1)) < 0.003 + 0.02 * t).astype(np.float32)
    angle = np.pi / 2 + rng.uniform(-0.4, 0.4)
    lines = convolved(seeds, streak(pixels(x, 6 + 10 * t), angle))
    lines = np.clip(lines / (lines.max() + 1e-6), 0, 1)
    return x * (1 - 0.25 * t) + (0.2 + 0.5 * t) * lines


def spots(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Dirt of one colour."""
    mask = np.clip((field(x, int(rng.integers(12, 40)), rng) - (0.75 - 0.5 * t)) * 6, 0, 1)
    colour = np.asarray(rng.uniform(0, 1, x.shape[2]), np.float32) * rng.uniform(0.5, 1)
    return x * (1 - mask) + mask * colour


def drops(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Water on the lens: blurred and brighter spots."""
    mask = np.clip((field(x, int(rng.integers(6, 14)), rng) - (0.6 - 0.5 * t)) * 8, 0, 1)
    return x * (1 - mask) + mask * (0.85 * blurred(x, pixels(x, 6)) + 0.15)


def veil(x: Floats, t: float, rng: Generator) -> Spoilt:
    """A rough bright texture over the scene: several octaves of smooth noise."""
    rough = sum(field(x, 2 ** (octave + 1), rng) * 0.75**octave for octave in range(4))
    rough = (rough - np.min(rough)) / (np.ptp(rough) + 1e-6)
    tint = 1 + rng.uniform(-0.1, 0.1, x.shape[2])
    ice = (0.2 + 0.7 * t) * rough ** rng.uniform(0.7, 2.0) * tint
    if rng.random() < 0.5:
        return x * (1 - 0.4 * t) + ice
    return 1 - (1 - x) * (1 - np.clip(ice, 0, 1))


def smoke(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Dark or grey clouds in places."""
    mask = t * np.clip(0.5 + field(x, 3, rng) + 0.4 * field(x, 9, rng), 0, 1)
    return x * (1 - mask) + mask * rng.uniform(0.1, 0.6)


def patches(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Rectangles in the way."""
    y, (height, width) = x.copy(), x.shape[:2]
    for _ in range(1 + int(5 * t)):
        h, w = (max(1, int(size * rng.uniform(0.05, 0.25))) for size in (height, width))
        row, column = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
        y[row : row + h, column : column + w] = rng.uniform(0, 1, x.shape[2])
    return y
