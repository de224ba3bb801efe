"""Weather. A function takes an image x [H, W, C], float32 in 0..1, a generator, its constants."""

import cv2
import numpy as np
from numpy.random import Generator

from zotta_edge.corruptions.blur import enlarged, gaussian, like, smear
from zotta_edge.corruptions.frost import texture
from zotta_edge.format import Floats

_WATER = np.array([175 / 255, 238 / 255, 238 / 255], np.float32)  # pale turquoise
_MUD = np.array([63 / 255, 42 / 255, 20 / 255], np.float32)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601


def snow(
    x: Floats,
    rng: Generator,
    density: float,
    spread: float,
    size: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Floats:
    """Enlarged noise above a threshold is flakes, which fall twice, over a whitened image."""
    noise = rng.normal(density, spread, x.shape[:2]).astype(np.float32)
    flakes = enlarged(noise, size)
    flakes = np.where(flakes < threshold, 0, np.minimum(flakes, 1))
    flakes = smear(flakes, radius, sigma, rng.uniform(-135, -45))
    whitened = np.maximum(x, _grey(x) * 1.5 + 0.5)
    dim = np.float32(kept) * x + np.float32(1 - kept) * whitened
    return like(x, dim + (flakes + flakes[::-1, ::-1])[..., None])


def frost(x: Floats, rng: Generator, image: float, ice: float, scale: float) -> Floats:
    """The image, dimmed, under a random piece of one of five icy panes."""
    pane = texture(int(rng.integers(5)), scale, max(x.shape[:2]))
    top, left = (
        int(rng.integers(0, have - need + 1))
        for have, need in zip(pane.shape[:2], x.shape[:2], strict=True)
    )
    piece = pane[top : top + x.shape[0], left : left + x.shape[1]]
    return np.float32(image) * x + np.float32(ice) * (piece if x.shape[2] == 3 else _grey(piece))


def fog(x: Floats, rng: Generator, thickness: float, decay: float) -> Floats:
    side = 1 << (max(x.shape[:2]) - 1).bit_length()
    haze = plasma(side, decay, rng)[: x.shape[0], : x.shape[1], None]
    brightest = x.max()
    return like(x, (x + thickness * haze) * (brightest / (brightest + thickness)))


def plasma(side: int, decay: float, rng: Generator) -> Floats:
    """Diamond-square: midpoints are the mean of their four neighbours plus noise.

    The noise shrinks by decay^2 with every halving; opposite edges meet. Scaled to 0..1.
    """
    field = np.zeros((max(side, 2), max(side, 2)), np.float32)
    step, amplitude = len(field), 1.0
    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        noise = np.float32(amplitude) * rng.uniform(-1, 1, (3, *corners.shape)).astype(np.float32)
        pairs = corners + np.roll(corners, -1, axis=0)
        centres = (pairs + np.roll(pairs, -1, axis=1)) / 4 + noise[0]
        field[half::step, half::step] = centres
        across = corners + np.roll(corners, -1, axis=1) + centres + np.roll(centres, 1, axis=0)
        down = pairs + centres + np.roll(centres, 1, axis=1)
        field[::step, half::step] = across / 4 + noise[1]
        field[half::step, ::step] = down / 4 + noise[2]
        step, amplitude = half, amplitude / decay**2
    field -= field.min()
    field /= field.max()
    return field


def spatter(
    x: Floats,
    rng: Generator,
    mean: float,
    spread: float,
    size: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Floats:
    """Drops of water, or of mud, where smoothed noise rises above a threshold."""
    noise = rng.normal(mean, spread, x.shape[:2]).astype(np.float32)
    liquid = gaussian(noise, size)
    liquid[liquid < threshold] = 0
    return _muddy(x, liquid, strength) if mud else _wet(x, liquid, strength)


def _wet(x: Floats, liquid: Floats, strength: float) -> Floats:
    """Light is refracted at the rim of a drop: brighten with the relief of the distance to it."""
    drops = (np.clip(liquid, 0, 1) * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    relief = cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    shine = drops * cv2.blur(relief, (3, 3)).astype(np.float32)
    shine *= np.float32(strength) / max(float(shine.max()), 1)
    return like(x, x + shine[..., None] * _tint(_WATER, x))


def _muddy(x: Floats, liquid: Floats, smoothness: float) -> Floats:
    cover = gaussian((liquid > 0).astype(np.float32), smoothness)
    cover[cover < 0.8] = 0
    cover = cover[..., None]
    return x * (1 - cover) + cover * _tint(_MUD, x)


def _tint(colour: Floats, x: Floats) -> Floats:
    return colour if x.shape[2] == 3 else _grey(colour)


def _grey(x: Floats) -> Floats:
    """Luma of the last axis, which stays with length 1."""
    return x if x.shape[-1] == 1 else (x @ _LUMA)[..., None]
