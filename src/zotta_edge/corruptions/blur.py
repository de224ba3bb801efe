"""Blur. Every function takes an image x [H, W, C], float32 in 0..1, a generator, its constants."""

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zotta_edge.format import Floats

Indices = NDArray[np.intp]


def like(x: Floats, y: object) -> Floats:
    """`y` as float32 in the shape of `x`: OpenCV drops a last axis of length one."""
    return np.asarray(y, np.float32).reshape(x.shape)


def gaussian(
    x: Floats, sigma: float, truncate: int = 4, border: int = cv2.BORDER_REPLICATE
) -> Floats:
    """A Gaussian filter cut off at `truncate` standard deviations."""
    size = 2 * int(truncate * sigma + 0.5) + 1
    return like(x, cv2.GaussianBlur(x, (size, size), sigma, borderType=border))


def gaussian_blur(x: Floats, rng: Generator, sigma: float) -> Floats:
    return gaussian(x, sigma)


def defocus_blur(x: Floats, rng: Generator, radius: float, antialias: float) -> Floats:
    """The image of a point through an open aperture is a disk."""
    return like(x, cv2.filter2D(x, -1, _disk(radius, antialias)))


def _disk(radius: float, antialias: float) -> Floats:
    reach = max(8, int(radius))
    offsets = np.arange(-reach, reach + 1)
    disk = (offsets**2 + offsets[:, None] ** 2 <= radius**2).astype(np.float32)
    size = (3, 3) if radius <= 8 else (5, 5)
    smooth: Floats = cv2.GaussianBlur(disk / disk.sum(), size, antialias)
    return smooth


def glass_blur(x: Floats, rng: Generator, sigma: float, reach: float, rounds: float) -> Floats:
    """Blur, let each pixel take the place of a near one, blur again."""
    shape = x.shape
    pixels = gaussian(x, sigma).reshape(-1, shape[2])
    for _ in range(int(rounds)):
        pixels = np.take(pixels, _shuffle(shape[0], shape[1], int(reach), rng), axis=0)
    return gaussian(pixels.reshape(shape), sigma)


def _shuffle(height: int, width: int, reach: int, rng: Generator) -> Indices:
    """Which pixel each pixel ends up with, [height * width].

    From the last pixel to the first, each copies the present value of a random neighbour
    (ImageNet-C's "swap" of RGB pixels is such a copy). A neighbour that was visited before has
    itself copied by then, so values travel along chains. Instead of pixel by pixel, all chains are
    followed at once, twice as far every time round.
    """
    rows = np.arange(reach + 1, height - reach + 1)
    columns = np.arange(reach + 1, width - reach + 1)
    size = (len(rows), len(columns))
    moves = rng.integers(-reach, reach, (2, *size))
    here = rows[:, None] * width + columns
    source = np.arange(height * width)
    source[here] = here + moves[0] * width + moves[1]
    visited = np.zeros(height * width, bool)
    visited[here] = True
    pending = visited & visited[source] & (source > np.arange(height * width))
    active = np.flatnonzero(pending)
    while len(active):
        target = source[active]
        source[active], pending[active] = source[target], pending[target]
        active = active[pending[active]]
    return source


def motion_blur(x: Floats, rng: Generator, radius: float, sigma: float) -> Floats:
    return smear(x, radius, sigma, rng.uniform(-45, 45))


def smear(x: Floats, radius: float, sigma: float, degrees: float) -> Floats:
    """Half a Gaussian along a line that starts at each pixel, as ImageMagick's motion blur."""
    steps = np.arange(2 * int(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    angle = np.deg2rad(degrees)
    rows = np.ceil(steps * np.sin(angle) - 0.5).astype(int)
    columns = np.ceil(steps * np.cos(angle) - 0.5).astype(int)
    kernel = np.zeros((np.ptp(rows) + 1, np.ptp(columns) + 1), np.float32)
    places = (rows - rows.min(), columns - columns.min())
    np.add.at(kernel, places, weights / weights.sum())  # on a slope, steps share pixels
    anchor = (int(-columns.min()), int(-rows.min()))
    return like(x, cv2.filter2D(x, -1, kernel, anchor=anchor, borderType=cv2.BORDER_REPLICATE))


def zoom_blur(x: Floats, rng: Generator, stop: float, step: float) -> Floats:
    """The mean of the image and of its enlargements by 1, 1 + step ... below `stop`."""
    factors = np.arange(1, stop, step)
    layers = [x, *(enlarged(x, factor) for factor in factors)]
    return like(x, sum(layers) / np.float32(len(layers)))


def enlarged(x: Floats, factor: float) -> Floats:
    """The middle of the image, enlarged (linearly, corner on corner) to the size of the whole."""
    axes = [_enlarged_axis(size, factor) for size in (x.shape[1], x.shape[0])]
    to_source = np.array([[axes[0][0], 0, axes[0][1]], [0, axes[1][0], axes[1][1]]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    size = (x.shape[1], x.shape[0])
    zoomed = cv2.warpAffine(x, to_source, size, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return like(x, zoomed)


def _enlarged_axis(size: int, factor: float) -> tuple[float, float]:
    """Scale and offset from an output pixel to the source pixel."""
    kept = int(np.ceil(size / factor))
    zoomed = max(round(kept * factor), 2)
    scale = (kept - 1) / (zoomed - 1)
    return scale, (size - kept) // 2 + (zoomed - size) // 2 * scale
