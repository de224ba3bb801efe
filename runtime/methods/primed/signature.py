"""What one image says of its own world, from its pixels and from the layers before the chosen ones.

    q = [m, m_i m_j / 5, 1]        m: measures of the image
    u = [s, 2 filter, q]           s: pooled features of the stem, of the image through its filter

all in units of the source's spread, clipped at 5. Maps that calibration fitted take q to the gain
of each filter, and u to what the norms' shifts and the classifier must make up for.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats
from zotta_edge.format.signatures import Signatures
from zotta_edge.runtime.watch.statistics import Source, floored

_CLIP = np.float32(5)  # spreads
_HOT = np.float32(2)  # what stands for a filter


class Need(NamedTuple):
    """What single images need taken back, one row each."""

    coordinates: Floats  # z; r, of the features from the first chosen layer on, is z C, [n, rank]
    deltas: Floats  # of the embedding, [n, E]


class Maps:
    """The stored maps, and the units of what they read.

    Parameters
    ----------
    first
        The first chosen layer: those before it are the stem.
    """

    def __init__(self, stored: Signatures, calibration: Calibration, first: int) -> None:
        self.stored = stored
        stem = Source.of(calibration, last=first)
        self._mean = stem.mean.astype(np.float32)
        self._unit = floored(stem.std).astype(np.float32) if first else self._mean
        self._lengths = stored.outward @ stored.outward.T  # of z C, from z

    def products(self, measures: Floats) -> Floats:
        """q: the measures, their products, and 1."""
        m = _clipped((measures - self.stored.measure_mean) / self.stored.measure_std)
        first, second = np.triu_indices(m.shape[1])
        ones = np.ones((len(m), 1), np.float32)
        return np.concatenate([m, m[:, first] * m[:, second] / _CLIP, ones], axis=1)

    def gains(self, q: Floats) -> Floats:
        """Log of how much nearer to the source each filter brings an image, [n, F]."""
        return q @ self.stored.gains

    def signature(self, stem: Floats, q: Floats, chosen: NDArray[np.intp]) -> Floats:
        """u, of the stem's features less the source's mean; `chosen` is 0 for no filter."""
        hot = _HOT * np.eye(len(self.stored.filters) + 1, dtype=np.float32)[chosen, 1:]
        return np.concatenate([_clipped(stem / self._unit), hot, q], axis=1)

    def off_source(self, stem: Floats) -> Floats:
        return stem - self._mean

    def needed(self, u: Floats, least: float) -> Need:
        """What u asks for, less the share that a source image would ask for, too.

        |r|^2 of source images is `energy` on the mean: it is what content does. Up to `least`
        times as much is nothing.
        """
        z = u @ self.stored.inward
        length = ((z @ self._lengths) * z).sum(axis=1, keepdims=True)
        own = np.maximum(0, 1 - np.float32(least * self.stored.energy) / np.maximum(length, 1e-12))
        return Need(own * z, own * (z @ self.stored.deltas))


def best_filters(gains: Floats, margin: float) -> NDArray[np.intp]:
    """The filter with the least log of each image, counted from 1; 0 where none is better.

    >>> best_filters(np.array([[0.3, -0.5], [-0.05, 0.2]], np.float32), margin=0.1)
    array([2, 0])
    """
    best = gains.argmin(axis=1)
    enough = gains[np.arange(len(gains)), best] < -margin
    return np.where(enough, best + 1, 0)


def _clipped(values: Floats) -> Floats:
    return np.clip(values, -_CLIP, _CLIP)
