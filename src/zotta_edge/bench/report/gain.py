"""How fast adaptation pays: the number of images until half of the final gain."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]

_SURE = 2.0  # standard errors that a gain must be above zero to count as one


def half_gain(differences: Sequence[Curve]) -> int | None:
    """Images of a stream until half of the final gain is there; None without a clear gain.

    `differences` holds, for each stream, +1 where the method alone was right, -1 where plain
    inference alone was, else 0. They are averaged over the streams, image by image: g_1 .. g_n. The
    final gain G is the mean of g over the last half. The curve is made monotone (least squares:
    isotonic regression), which takes the noise out without choosing a window, and the answer is the
    first image where it reaches G / 2. There is none if G is less than two standard errors.
    """
    if not differences:
        return None
    curve = mean_curve(differences)
    last = curve[len(curve) // 2 :]
    final = float(last.mean())
    if len(curve) < 2 or final <= _SURE * float(last.std()) / len(last) ** 0.5:
        return None
    reached = np.flatnonzero(monotone(curve) >= final / 2)
    return int(reached[0]) + 1


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Image by image, over as many images as the shortest stream has."""
    length = min(len(curve) for curve in curves)
    mean: Curve = np.mean([curve[:length] for curve in curves], axis=0)
    return mean


def monotone(curve: Curve) -> Curve:
    """The nearest curve that never falls: neighbours that do are pooled into their mean."""
    pools: list[tuple[float, int]] = []  # sum and length of each level stretch
    for value in curve.tolist():
        total, length = value, 1
        while pools and pools[-1][0] * length >= total * pools[-1][1]:
            before, count = pools.pop()
            total, length = before + total, count + length
        pools.append((total, length))
    return np.repeat([total / length for total, length in pools], [n for _, n in pools])
