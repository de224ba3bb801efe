"""Each image's own move of the shifts: theta_i = theta - (J^T J + lambda s I)^-1 J^T r_i."""

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, Prime
from zotta_edge.runtime.methods.primed.gauss_newton import GaussNewton
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.signature import Maps, Need
from zotta_edge.runtime.zeroth.parameters import Parameters


class OwnMoves:
    """From signatures to affines, one row an image."""

    def __init__(
        self, maps: Maps, prime: Prime, parameters: Parameters, settings: PrimedSettings
    ) -> None:
        self._newton = GaussNewton(prime, settings.damping)
        self._maps, self._parameters, self._settings = maps, parameters, settings
        self._furthest = settings.furthest * float(np.linalg.norm(parameters.source))

    def needed(self, stem: Floats, q: Floats, chosen: NDArray[np.intp]) -> Need:
        """Of images that went through the chosen filters; `stem` less the source's mean."""
        return self._maps.needed(self._maps.signature(stem, q, chosen), self._settings.own_least)

    def moves(self, need: Need) -> Floats:
        """How far each image's shifts go, [n, d], within the same bound as the stream's."""
        moves = self._newton.steps(need.offsets)
        length = np.linalg.norm(moves, axis=1, keepdims=True)
        share = np.minimum(1, self._furthest / np.maximum(length, 1e-12))
        bounded: Floats = moves * share.astype(np.float32)
        return bounded

    def explained(self, need: Need, moves: Floats) -> Floats:
        """What of the features' offset the images' own needs and moves account for, [n, D]."""
        trust = np.float32(self._settings.jacobian_trust)
        explained: Floats = need.offsets + trust * self._newton.effects(moves)
        return explained

    def thetas(self, theta: Floats, moves: Floats) -> Floats:
        """[n, d] of all affines: the stream's, each with its own move on top."""
        thetas = np.tile(theta, (len(moves), 1))
        thetas[:, self._parameters.shifts] += moves
        return thetas
