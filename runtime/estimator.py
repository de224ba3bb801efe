"""Gradients from forward passes: Eq. 2, the two-sided randomized gradient estimate."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.random import Generator

from zotta_edge.format import Floats
from zotta_edge.runtime.engine import Outputs
from zotta_edge.runtime.objective import Objective

Directions = Literal["gaussian", "segmented-uniform"]


class Forward(Protocol):
    """theta -> outputs of one batch; theta is [d], or [batch, d] for each sample's own."""

    @property
    def batch(self) -> int: ...

    def __call__(self, theta: Floats) -> Outputs: ...


@dataclass(frozen=True)
class Estimate:
    gradient: Floats  # [d]
    losses: tuple[float, ...]  # of each perturbed pass: theta + c u_1, theta - c u_1, ...
    outputs: tuple[Outputs, ...]  # of the same passes

    @property
    def loss(self) -> float:
        """L(theta) up to O(c^2): the first order cancels between the two sides."""
        return float(np.mean(self.losses))


class Estimator(Protocol):
    def __call__(
        self, forward: Forward, theta: Floats, objective: Objective, size: float, rng: Generator
    ) -> Estimate:
        """The gradient of the objective at theta, from perturbations of the given size c."""
        ...


@dataclass(frozen=True)
class SharedDirections:
    """Eq. 2: g = 1/k sum_i (L(theta + c u_i) - L(theta - c u_i)) / 2c u_i."""

    pairs: int  # k
    directions: Directions = "gaussian"

    def __call__(
        self, forward: Forward, theta: Floats, objective: Objective, size: float, rng: Generator
    ) -> Estimate:
        gradient = np.zeros_like(theta)
        outputs: list[Outputs] = []
        losses: list[float] = []
        for _ in range(self.pairs):
            u, credit = draw(self.directions, len(theta), rng)
            sides = [forward(theta + size * u), forward(theta - size * u)]
            plus, minus = (objective(side) for side in sides)
            gradient += np.float32((plus - minus) / (2 * size * self.pairs)) * credit
            outputs += sides
            losses += [plus, minus]
        return Estimate(gradient, tuple(losses), tuple(outputs))


def draw(directions: Directions, count: int, rng: Generator) -> tuple[Floats, Floats]:
    """A direction u, and the vector its difference is credited to.

    Gaussian: u ~ N(0, I), credited to u. Segmented uniform, as in SPSA: u ~ +-U[0.5, 1], whose
    coordinates are never near zero, credited to 1 / u. Both make Eq. 2 unbiased.
    """
    if directions == "gaussian":
        u = rng.standard_normal(count, dtype=np.float32)
        return u, u
    signs = np.where(rng.random(count, dtype=np.float32) < 0.5, np.float32(-1), np.float32(1))
    u = signs * (0.5 + 0.5 * rng.random(count, dtype=np.float32))
    return u, 1 / u
