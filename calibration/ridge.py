"""Ridge regression, whole and of low rank."""

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats

Doubles = NDArray[np.float64]
_CONSTANT = 1e-3  # penalty of the last column, which is 1


def ridge(inputs: Floats, targets: Floats, penalty: float, weights: Doubles) -> Doubles:
    """min sum_i w_i |x_i W - y_i|^2 + penalty |W|^2; the last input is the constant.

    >>> x = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], np.float32)
    >>> ridge(x, 2 * x[:, :1] + 1, 0.0, np.ones(3)).round(2).ravel().tolist()
    [2.0, 1.0]
    """
    weighted = inputs * weights[:, None]  # in doubles
    penalties = np.full(inputs.shape[1], penalty)
    penalties[-1] = _CONSTANT
    normal = weighted.T @ inputs + np.diag(penalties)
    return np.linalg.solve(normal, weighted.T @ targets).astype(np.float64)


def principal(predictions: Doubles, weights: Doubles, rank: int) -> Doubles:
    """The `rank` directions [D, rank] that predictions vary along most, from zero."""
    scaled = predictions * np.sqrt(weights)[:, None]
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    largest: Doubles = vectors[:, np.argsort(-values)[:rank]]
    return largest
