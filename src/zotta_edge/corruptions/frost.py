"""Icy panes for `frost`, drawn rather than photographed: fern-like crystals over cloudy glass.

They are as bright and as rough as the five photographs behind ImageNet-C (mean levels 123 to 207,
standard deviations 18 to 43 of 255), which is what the severity constants were chosen for; the
strengths of clouds and grain follow the photographs' spectra. Classifiers do not find them equally
hard: frost figures are comparable with each other, not with published ones.
"""

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zotta_edge.format import Floats

_SIDE = 640  # pixels of a pane
_BRANCH = np.deg2rad(60)  # ice crystals branch at sixty degrees


@dataclass(frozen=True)
class Pane:
    colour: tuple[int, int, int]  # mean RGB
    roughness: float  # standard deviation of the grey levels
    clouds: float  # how strongly the glass varies slowly, relative to its crystals
    grain: float  # and from pixel to pixel
    ferns: int
    length: tuple[float, float]  # shortest and longest fern, in pixels


PANES = (
    Pane((78, 149, 166), 18, 1.5, 0.6, 3000, (6, 40)),
    Pane((201, 205, 214), 22, 1.0, 0.2, 900, (30, 130)),
    Pane((196, 204, 214), 22, 1.0, 0.2, 1400, (20, 90)),
    Pane((138, 153, 165), 29, 1.0, 0.6, 2500, (8, 60)),
    Pane((112, 123, 135), 43, 1.0, 0.6, 700, (30, 110)),
)


@lru_cache(maxsize=16)
def texture(number: int, scale: float, side: int) -> Floats:
    """Pane `number` at a scale, or larger if `side` pixels would not fit; RGB in 0..1."""
    pane = _drawn(number)
    scale = max(scale, side / len(pane))
    if scale == 1:
        return pane
    size = max(side, round(len(pane) * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    resized = cv2.resize(pane, (size, size), interpolation=method)
    return np.asarray(np.clip(resized, 0, 1), np.float32)


@lru_cache
def _drawn(number: int) -> Floats:
    pane = PANES[number]
    rng = np.random.default_rng(number)
    relief = _standardised(_crystals(pane, rng))
    relief += pane.clouds * _standardised(_clouds(rng)) + pane.grain * _standardised(_grain(rng))
    relief = pane.roughness * _standardised(relief)
    levels = np.array(pane.colour) + relief[..., None]
    return np.asarray(np.clip(levels / 255, 0, 1), np.float32)


def _clouds(rng: Generator) -> Floats:
    """Noise at every scale from 4 cells to 256, each half as strong as the one before."""
    total = np.zeros((_SIDE, _SIDE), np.float32)
    for octave in range(2, 9):
        cells = rng.standard_normal((1 << octave, 1 << octave), np.float32)
        total += cv2.resize(cells, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC) / 2**octave
    return total


def _grain(rng: Generator) -> Floats:
    noise = rng.standard_normal((_SIDE, _SIDE), np.float32)
    return np.asarray(cv2.GaussianBlur(noise, (3, 3), 0.6), np.float32)


def _crystals(pane: Pane, rng: Generator) -> Floats:
    """Ferns of random place, direction and brightness, later ones over earlier ones."""
    canvas = np.full((_SIDE, _SIDE), 128, np.uint8)
    for _ in range(pane.ferns):
        root = rng.uniform(0, _SIDE, 2)
        length = rng.uniform(*pane.length)
        strokes = _fern(root, rng.uniform(0, 2 * np.pi), length)
        cv2.polylines(
            canvas, list(strokes), False, int(rng.integers(60, 256)), 1, cv2.LINE_AA, shift=3
        )
    return np.asarray(cv2.GaussianBlur(canvas, (3, 3), 0.7), np.float32)


def _fern(root: NDArray[np.float64], angle: float, length: float) -> NDArray[np.int32]:
    """A stem and its branches, shorter towards the tip: [stroke, 2 ends, xy], in 1/8 pixels."""
    along = np.arange(0, 1, max(2.5 / length, 0.03))  # where on the stem branches start
    starts = root + length * along[:, None] * _unit(np.array([angle]))
    sides = np.where(np.arange(len(along)) % 2, 1, -1)
    reach = 0.3 * length * (1 - along)[:, None]
    ends = starts + reach * _unit(angle + sides * _BRANCH)
    stem = np.stack([root, root + length * _unit(np.array([angle]))[0]])
    strokes = np.concatenate([stem[None], np.stack([starts, ends], axis=1)])
    return np.asarray(np.rint(strokes * 8), np.int32)


def _unit(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _standardised(field: Floats) -> Floats:
    return np.asarray((field - field.mean()) / field.std(), np.float32)
