"""Cheap measures of an image, which tell how it is degraded before any pass is spent on it.

Brightness and colour, edges at several scales, noise, flat and saturated pixels, levels, lines.
They are logarithms where a size is meant, so that products of strengths are sums.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, Preprocessing
from zotta_edge.sessions import physical_cores

_TINY = np.float32(1e-4)  # of a pixel's range: less is not seen
_FLAT = 0.004  # one level of 256
_LARGE = 64  # pixels a side: larger images have a fourth scale, and larger tiles
_BAND = 16  # rows: of larger images only bands of so many are looked at...
_APART = 64  # ...one in so many rows, which is enough to tell degradations apart
_LEAST = 3  # ...and at least so many
_BINS = 64  # of the levels' histogram
_AT_ONCE = 49_152  # pixels: small images are measured together, large ones fit the cache


class Measures:
    """[batch, C, H, W], prepared for the network -> [batch, count].

    >>> measures = Measures(Preprocessing(32, 32, (0.5,), (0.5,)))
    >>> measures(np.zeros((4, 1, 32, 32), np.float32)).shape == (4, measures.count)
    True

    Parameters
    ----------
    threads
        As many as the model's, which rest meanwhile; None: one for each physical core.
    """

    def __init__(self, p: Preprocessing, threads: int | None = None) -> None:
        self._threads = threads or physical_cores()
        self._last = p.layout == "NHWC"
        self._mean, self._std = (np.array(v, np.float32) for v in (p.mean, p.std))
        self._large = min(p.height, p.width) > _LARGE
        self._bands_of = max(_LEAST, p.height // _APART)
        rows = self._bands_of * _BAND if self._large else p.height
        self._chunk = max(1, _AT_ONCE // (rows * p.width))
        sides = (p.height, p.width)
        blank = np.zeros((1, *((*sides, p.channels) if self._last else (p.channels, *sides))))
        self.count = self(blank.astype(np.float32)).shape[1]

    def __call__(self, batch: Floats) -> Floats:
        planes = batch.transpose(0, 3, 1, 2) if self._last else batch
        starts = range(0, len(planes), self._chunk)
        parts = [planes[at : at + self._chunk] for at in starts]
        return np.concatenate(list(self._measured(parts)))

    def _measured(self, parts: list[Floats]) -> Iterable[Floats]:
        if self._threads < 2 or len(parts) < 2:
            return map(self._measure, parts)
        return _pool(self._threads).map(self._measure, parts)

    def _measure(self, images: Floats) -> Floats:
        bands = np.moveaxis(self._bands(images), 1, -1) * self._std + self._mean
        pixels = np.ascontiguousarray(np.moveaxis(bands, -1, 0))  # [C, n, band, row, column]
        grey = pixels.mean(axis=0)
        scales, side = ((1, 2, 4, 8), 16) if self._large else ((1, 2, 4), 4)
        found = [*_levels(grey), *_colours(pixels), *_edges(grey, scales), *_noise(grey)]
        return np.stack([*found, *_tiles(grey, side), *_lines(grey)], axis=1).astype(np.float32)

    def _bands(self, images: Floats) -> Floats:
        """A view [n, C, band, row, column]."""
        n, channels, height, width = images.shape
        if not self._large:
            return images[:, :, None]
        period = height // self._bands_of
        first = (period - _BAND) // 2
        whole = images[:, :, : self._bands_of * period]
        parts: Floats = whole.reshape(n, channels, self._bands_of, period, width)
        return parts[:, :, :, first : first + _BAND]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Shared by all models of a process; NumPy lets go of the interpreter in its loops."""
    return ThreadPoolExecutor(threads, "measures")


def _log(values: Floats) -> Floats:
    logarithm: Floats = np.log(np.maximum(values, 0) + _TINY)
    return logarithm


def _mean(values: Floats) -> Floats:
    """Over all pixels of each image: three times as fast as NumPy's own."""
    flat = _by_band(values)
    return _dot(flat, _ones(flat.shape[-1]))


@cache
def _ones(count: int) -> Floats:
    return np.ones(count, np.float32)


def _square(values: Floats) -> Floats:
    """The mean square."""
    flat = _by_band(values)
    return _dot(flat, flat)


def _by_band(values: Floats) -> Floats:
    """[n, band, pixels]: of more than 10,000 numbers BLAS would wake threads for each product."""
    return values.reshape(*values.shape[:2], -1)


def _dot(one: Floats, other: Floats) -> Floats:
    """Row by row, so that an image's measures do not depend on its batch."""
    mean: Floats = np.vecdot(one, other).mean(axis=1) / np.float32(one.shape[-1])
    return mean


def _std(values: Floats) -> Floats:
    spread: Floats = np.sqrt(_square(values - _mean(values)[:, None, None, None]))
    return spread


def _share(where: NDArray[np.bool_]) -> Floats:
    return np.array([np.count_nonzero(each) / each.size for each in where], np.float32)


def _levels(grey: Floats) -> list[Floats]:
    """Brightness, contrast, what is black or white, and how many levels there are."""
    mean = _mean(grey)
    counts = _histograms(grey)
    share = counts / grey[0].size
    entropy = -(share * np.log(share + 1e-9)).sum(axis=1)
    between = np.maximum.accumulate(counts > 0, axis=1)
    between &= np.maximum.accumulate(counts[:, ::-1] > 0, axis=1)[:, ::-1]
    taken = (counts > 0).sum(axis=1) / between.sum(axis=1)  # of the levels from darkest to lightest
    spread = _log(_std(grey))
    return [mean, mean**2, spread, _share(grey < 0.02), _share(grey > 0.98), entropy, taken]


def _histograms(grey: Floats) -> NDArray[np.intp]:
    levels = (grey * (_BINS - 0.01)).clip(0, _BINS - 1).astype(np.intp)
    levels += np.arange(len(grey))[:, None, None, None] * _BINS
    return np.bincount(levels.ravel(), minlength=len(grey) * _BINS).reshape(-1, _BINS)


def _colours(pixels: Floats) -> list[Floats]:
    if len(pixels) != 3:
        return []
    red, green, blue = pixels
    found = [_log(_mean(np.minimum(np.minimum(red, green), blue)))]
    for other in (red - green, blue - np.float32(0.5) * (red + green)):
        steps = _mean(np.abs(other[..., 1:] - other[..., :-1]))
        found += [_mean(other), _log(_std(other)), _log(steps)]
    return found


def _edges(grey: Floats, scales: tuple[int, ...]) -> list[Floats]:
    """Their energy along rows and columns at each scale."""
    found: list[Floats] = []
    for scale in scales:
        across = np.abs(grey[:, :, ::scale, scale:] - grey[:, :, ::scale, :-scale])
        down = np.abs(grey[:, :, scale:, ::scale] - grey[:, :, :-scale, ::scale])
        a, b = _mean(across), _mean(down)
        found += [_log(a + b), np.abs(_log(a) - _log(b))]
        if scale == 1:
            tails = _log(_square(across)) - 2 * _log(a)
            found += [tails, _share(across < _FLAT), _share(down < _FLAT)]
    return found


def _noise(grey: Floats) -> list[Floats]:
    """What is out of line with its neighbours, and whether neighbours agree in it."""
    left, middle, right = grey[..., :-2], grey[..., 1:-1], grey[..., 2:]
    bend = left + right - 2 * middle
    both = np.abs(_bends(bend, axis=2))  # Immerkaer's noise
    size = np.abs(bend)
    out = np.maximum(size - np.abs(right - left), 0) * np.float32(0.5)  # of what lies between them
    far = _mean(out)
    energy = _square(bend) + _TINY**2
    neighbours = (
        _mean(bend[..., 1:] * bend[..., :-1]) / energy,
        _mean(bend[..., 2:] * bend[..., :-2]) / energy,
        _mean(bend[:, :, 1:] * bend[:, :, :-1]) / energy,
    )
    tails = _log(_square(out)) - 2 * _log(far)
    sizes = [_log(_mean(both)), _log(_mean(size)), _log(far)]
    return [*sizes, tails, _share(out > 0.1), *neighbours]


def _tiles(grey: Floats, side: int) -> list[Floats]:
    """How brightness and contrast vary over the image, and the least of either."""
    n, bands, height, width = grey.shape
    rows, columns = height // side, width // side
    whole = grey[:, :, : rows * side, : columns * side].reshape(-1, columns, side)
    mean, square = (
        (np.vecdot(whole, other) / np.float32(side))
        .reshape(n, bands * rows, side, columns)
        .mean(axis=2)
        for other in (_ones(side), whole)
    )
    spread = np.sqrt(np.maximum(square - np.square(mean), 0)).reshape(n, -1)
    few = max(spread.shape[1] // 10, 1) - 1
    calmest = np.partition(spread, few, axis=1)[:, few]
    found = [_log(mean.std(axis=(1, 2))), _log(spread.mean(axis=1)), _log(calmest)]
    return [*found, mean.min(axis=(1, 2)), mean.max(axis=(1, 2))]


def _lines(grey: Floats) -> list[Floats]:
    """Rows and columns that differ from the next ones as a whole."""
    n, bands, height, width = grey.shape
    rows = np.vecdot(grey, _ones(width)) / np.float32(width)
    columns = grey.reshape(n, bands * height, width).mean(axis=1)
    return [
        _log(np.abs(_bends(rows)).mean(axis=(1, 2))),
        _log(np.abs(_bends(columns)).mean(axis=1)),
    ]


def _bends(values: Floats, axis: int = -1) -> Floats:
    """Second differences."""
    along = np.moveaxis(values, axis, -1)
    bends = along[..., 2:] - 2 * along[..., 1:-1] + along[..., :-2]
    return np.moveaxis(bends, -1, axis)
