"""The step that a stored Jacobian gives: from an offset of the features to a move of the shifts."""

import numpy as np

from zotta_edge.format import Floats, Prime
from zotta_edge.runtime.watch.statistics import Doubles


class GaussNewton:
    """(J^T J + lambda s I)^-1 J^T r with s = trace(J^T J) / d, for J = F A^T of low rank.

    Nothing larger than the thin matrices is ever made:
    (J^T J + m I)^-1 J^T = A (F^T F A^T A + m I)^-1 F^T.
    """

    def __init__(self, prime: Prime, damping: float) -> None:
        self._features, self._shifts = prime.features, prime.shifts  # F [D, p], A [d, p]
        # In float32: copies of F and A in doubles would need more memory than all else here.
        f = (prime.features.T @ prime.features).astype(np.float64)
        a = (prime.shifts.T @ prime.shifts).astype(np.float64)
        mean_diagonal = np.trace(f @ a) / len(prime.shifts)  # s
        self._inner = np.linalg.inv(f @ a + damping * mean_diagonal * np.eye(len(f)))

    def step(self, offset: Doubles) -> Floats:
        """The move of the shifts, [d], that takes back an offset of the features, [D], damped."""
        back = -(self._inner @ (offset.astype(np.float32) @ self._features))
        move: Floats = self._shifts @ back.astype(np.float32)
        return move

    def steps(self, offsets: Floats) -> Floats:
        """The same for a row each, [n, D] -> [n, d]."""
        back = -(offsets @ self._features) @ self._inner.T.astype(np.float32)
        return np.asarray(back @ self._shifts.T, np.float32)

    def effects(self, moves: Floats) -> Floats:
        """J move of a row each, [n, d] -> [n, D]."""
        return np.asarray((moves @ self._shifts) @ self._features.T, np.float32)

    def effect(self, move: Floats) -> Floats:
        """J move: how far the features should go with it, [D]."""
        effect: Floats = self._features @ (move @ self._shifts)
        return effect
