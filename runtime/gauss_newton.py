"""The step that a stored Jacobian gives: from a shift of the features to a move of the affines."""

import numpy as np

from zotta_edge.format import Floats, Prime
from zotta_edge.runtime.statistics import Doubles


class GaussNewton:
    """(J^T J + lambda s I)^-1 J^T r with s = trace(J^T J) / d, for J = F A^T of low rank.

    Nothing larger than the thin matrices is ever made:
    (J^T J + m I)^-1 J^T = A (F^T F A^T A + m I)^-1 F^T.
    """

    def __init__(self, prime: Prime, damping: float) -> None:
        self._features, self._affines = prime.features, prime.affines  # F [D, p], A [d, p]
        f = prime.features.T.astype(np.float64) @ prime.features
        a = prime.affines.T.astype(np.float64) @ prime.affines
        mean_diagonal = np.trace(f @ a) / len(prime.affines)  # s
        self._inner = np.linalg.inv(f @ a + damping * mean_diagonal * np.eye(len(f)))

    def step(self, shift: Doubles) -> Floats:
        """The move of theta, [d], that takes back a shift of the features, [D], damped."""
        back = -(self._inner @ (shift.astype(np.float32) @ self._features))
        move: Floats = self._affines @ back.astype(np.float32)
        return move

    def effect(self, move: Floats) -> Floats:
        """J move: how far the features should go with it, [D]."""
        effect: Floats = self._features @ (move @ self._affines)
        return effect
