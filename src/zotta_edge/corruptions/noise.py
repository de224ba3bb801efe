"""Noise. Every function takes an image x [H, W, C], float32 in 0..1, a generator, its constants."""

import numpy as np
from numpy.random import Generator

from zotta_edge.format import Floats


def gaussian_noise(x: Floats, rng: Generator, sigma: float) -> Floats:
    return x + np.float32(sigma) * rng.standard_normal(x.shape, np.float32)


def shot_noise(x: Floats, rng: Generator, photons: float) -> Floats:
    """Poisson noise of a pixel that holds at most `photons`."""
    return rng.poisson(x * np.float32(photons)).astype(np.float32) / np.float32(photons)


def impulse_noise(x: Floats, rng: Generator, amount: float) -> Floats:
    """Salt and pepper on a share of all values, channel by channel."""
    draw = rng.random(x.shape, np.float32)
    noisy = np.where(draw < amount, np.float32(1), x)
    noisy[draw < amount / 2] = 0
    return noisy


def speckle_noise(x: Floats, rng: Generator, sigma: float) -> Floats:
    return x + x * np.float32(sigma) * rng.standard_normal(x.shape, np.float32)
