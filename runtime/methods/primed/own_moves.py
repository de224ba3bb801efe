"""Each image's own move of the shifts: theta_i = theta - (J^T J + lambda s I)^-1 J^T r_i."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, Prime
from zotta_edge.runtime.methods.primed.gauss_newton import GaussNewton
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.signature import Maps, Need
from zotta_edge.runtime.zeroth.parameters import Parameters


class Moves(NamedTuple):
    """One row an image."""

    shifts: Floats  # how far they go, [n, d]
    explained: Floats  # of the features' offset, by what the image needs and its move, [n, D]


class OwnMoves:
    """From signatures to affines, one row an image.

    r_i = z_i C has the few coordinates z, so the step of every row of C is made once.
    """

    def __init__(
        self, maps: Maps, prime: Prime, parameters: Parameters, settings: PrimedSettings
    ) -> None:
        newton = GaussNewton(prime, settings.damping)
        self._maps, self._parameters, self._settings = maps, parameters, settings
        self._offsets = maps.stored.outward  # C, [rank, D]
        self._steps = newton.steps(self._offsets)
        self._effects = np.float32(settings.jacobian_trust) * newton.effects(self._steps)
        self._furthest = settings.furthest * float(np.linalg.norm(parameters.source))

    def needed(self, stem: Floats, q: Floats, chosen: NDArray[np.intp]) -> Need:
        """Of images that went through the chosen filters; `stem` less the source's mean."""
        return self._maps.needed(self._maps.signature(stem, q, chosen), self._settings.own_least)

    def moves(self, need: Need) -> Moves:
        """Within the same bound as the stream's."""
        z = need.coordinates
        steps = z @ self._steps
        length = np.linalg.norm(steps, axis=1, keepdims=True)
        share = np.minimum(1, self._furthest / np.maximum(length, 1e-12)).astype(np.float32)
        return Moves(share * steps, z @ self._offsets + (share * z) @ self._effects)

    def thetas(self, theta: Floats, moves: Moves) -> Floats:
        """[n, d] of all affines: the stream's, each with its own move on top."""
        thetas = np.tile(theta, (len(moves.shifts), 1))
        thetas[:, self._parameters.shifts] += moves.shifts
        return thetas
