"""Light and colour: images [H, W, C] from 0 to 1 and a strength from 0 to 1 in, an image out."""

import numpy as np
from numpy.random import Generator

from zotta_edge.calibration.spoiling.fields import Spoilt, blurred, coordinates, field
from zotta_edge.format import Floats


def haze(x: Floats, t: float, rng: Generator) -> Spoilt:
    veil = t * (0.65 + 0.25 * field(x, 4, rng))
    return x * (1 - veil) + veil * rng.uniform(0.6, 1.0)


def dim(x: Floats, t: float, rng: Generator) -> Spoilt:
    return (x * (1 - 0.85 * t)) ** rng.uniform(0.9, 1.3)


def bright(x: Floats, t: float, rng: Generator) -> Spoilt:
    return x * (1 + 0.3 * t * rng.random()) + 0.45 * t


def low_contrast(x: Floats, t: float, rng: Generator) -> Spoilt:
    level = rng.uniform(0.3, 0.7) if rng.random() < 0.5 else x.mean()
    return level + (x - level) * (1 - 0.93 * t)


def hard_contrast(x: Floats, t: float, rng: Generator) -> Spoilt:
    return x.mean() + (x - x.mean()) * (1 + 3 * t)


def gamma(x: Floats, t: float, rng: Generator) -> Spoilt:
    power = 1 + 2 * t if rng.random() < 0.5 else 1 / (1 + 2 * t)
    return np.maximum(x, 0) ** power


def cast(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Light of another colour."""
    return x * (1 + t * np.asarray(rng.uniform(-0.6, 0.4, x.shape[2]), np.float32))


def saturation(x: Floats, t: float, rng: Generator) -> Spoilt:
    grey = x.mean(axis=2, keepdims=True)
    return grey + (x - grey) * (1 + 6 * t if rng.random() < 0.6 else 1 - t)


def vignette(x: Floats, t: float, rng: Generator) -> Spoilt:
    columns, rows = coordinates(x)
    height, width = x.shape[:2]
    away = np.hypot(columns / width - 0.5, rows / height - 0.5)[..., None] / 0.7
    return x * (1 - t * away ** rng.uniform(1, 3))


def shade(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Part of the scene in shadow."""
    edge = 1 / (1 + np.exp(-12 * (field(x, 2, rng) + rng.uniform(-0.3, 0.3))))
    return x * (1 - 0.85 * t * edge)


def glare(x: Floats, t: float, rng: Generator) -> Spoilt:
    """A lamp in the picture, and what it spills over."""
    columns, rows = coordinates(x)
    height, width = x.shape[:2]
    at = rng.uniform(0.1, 0.9, 2)
    squared = (columns / width - at[0]) ** 2 + (rows / height - at[1]) ** 2
    return x + 1.2 * t * np.exp(-squared / (2 * rng.uniform(0.1, 0.4) ** 2))[..., None]


def bloom(x: Floats, t: float, rng: Generator) -> Spoilt:
    """Bright places run over."""
    return x + 2.5 * t * blurred(np.maximum(x - 0.5, 0), x.shape[0] / rng.uniform(6, 20))


def night(x: Floats, t: float, rng: Generator) -> Spoilt:
    dark = np.maximum(x * (1 - 0.6 * t), 0) ** (1 + 1.2 * t)
    return dark + 0.12 * t * rng.standard_normal(x.shape, dtype=np.float32)
