"""What processing does to images. Functions take x [H, W, C], float32 in 0..1, and constants."""

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zotta_edge.corruptions.blur import gaussian, like
from zotta_edge.format import Floats

_TINY = np.float32(1e-6)  # below any difference between two grey levels


def contrast(x: Floats, rng: Generator, factor: float) -> Floats:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return like(x, (x - mean) * np.float32(factor) + mean)


def brightness(x: Floats, rng: Generator, amount: float) -> Floats:
    """Add to V of HSV, which is max(R, G, B), and keep hue and saturation."""
    value = _value(x)
    raised = np.minimum(value + np.float32(amount), 1)
    brighter: Floats = x * (raised / np.maximum(value, _TINY))
    brighter[value[..., 0] == 0] = np.float32(amount)
    return brighter


def saturate(x: Floats, rng: Generator, factor: float, offset: float) -> Floats:
    """S <- S * factor + offset in HSV, where S = 1 - min / max."""
    if x.shape[2] == 1:
        return x
    value = _value(x)
    saturation = 1 + _value(-x) / np.maximum(value, _TINY)
    wanted = np.clip(saturation * np.float32(factor) + np.float32(offset), 0, 1)
    changed = like(x, value - (value - x) * (wanted / np.maximum(saturation, _TINY)))
    grey = saturation[..., 0] < _TINY
    changed[grey, 1:] = (value * (1 - wanted))[grey]  # no hue counts as hue 0, which is red
    return changed


def _value(x: Floats) -> Floats:
    """V of HSV, [H, W, 1]; ten times faster than x.max(axis=2)."""
    value: Floats = np.maximum.reduce([x[..., channel] for channel in range(x.shape[2])])
    return value[..., None]


def jpeg_compression(x: Floats, rng: Generator, quality: float) -> Floats:
    _, encoded = cv2.imencode(
        ".jpg", _bytes(x[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, int(quality)]
    )
    kind = cv2.IMREAD_GRAYSCALE if x.shape[2] == 1 else cv2.IMREAD_COLOR
    return like(x, cv2.imdecode(encoded, kind))[..., ::-1] / np.float32(255)


def pixelate(x: Floats, rng: Generator, share: float) -> Floats:
    """Shrink to a share of the size by averaging, enlarge by repeating."""
    height, width = x.shape[:2]
    small = (max(1, int(width * share)), max(1, int(height * share)))
    blocks = cv2.resize(_bytes(x), small, interpolation=cv2.INTER_AREA)
    enlarged = cv2.resize(blocks, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    return like(x, enlarged) / np.float32(255)


def elastic_transform(
    x: Floats, rng: Generator, amplitude: float, smoothness: float, tilt: float
) -> Floats:
    """A random affine map, then random displacements that vary smoothly over the image.

    The constants are shares of the shorter side.
    """
    height, width = x.shape[:2]
    side = min(height, width)
    x = _tilted(x, tilt * side, rng)
    shifts = rng.uniform(-1, 1, (2, height, width)).astype(np.float32)
    dx, dy = (
        gaussian(shift, smoothness * side, truncate=3, border=cv2.BORDER_REFLECT)
        * np.float32(amplitude * side)
        for shift in shifts
    )
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    map_x, map_y = (columns + dx).astype(np.float32), (rows + dy).astype(np.float32)
    moved = cv2.remap(x, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return like(x, moved)


def _tilted(x: Floats, reach: float, rng: Generator) -> Floats:
    """Move three corners of a square in the middle by up to `reach` pixels each."""
    height, width = x.shape[:2]
    centre = np.array([height // 2, width // 2])
    arm = max(1, min(height, width) // 3)
    before = (centre + arm * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    after = before + rng.uniform(-reach, reach, before.shape).astype(np.float32)
    matrix = cv2.getAffineTransform(before, after)
    tilted = cv2.warpAffine(x, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    return like(x, tilted)


def _bytes(x: Floats) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.rint(x * 255), np.uint8)
