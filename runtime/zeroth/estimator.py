"""Gradients from forward passes: Eq. 2, the two-sided randomized estimate, and a sharper one."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.random import Generator

from zotta_edge.format import Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.zeroth.objective import Objective, SampleObjective

Loss = TypeVar("Loss", bound=Objective, contravariant=True)
Directions = Literal["gaussian", "segmented-uniform"]


@dataclass(frozen=True)
class DirectionSettings(Options):
    pairs: int = option(5, "k of Eq. 2, pairs of perturbed passes an update", low=1)
    perturbation: float = option(0.01, "c of Eq. 2, size of a perturbation", low=1e-6)
    perturbation_decay: float = option(
        0.0, "gamma, c_t = c / t^gamma at update t (SPSA: 0.101, paper: 0)", low=0
    )
    directions: Directions = option(
        "gaussian", "u of Eq. 2, N(0, I) as in the paper or SPSA's +-U[0.5, 1]"
    )

    def size(self, update: int) -> float:
        """c_t of the given update, counted from 1."""
        return float(self.perturbation / update**self.perturbation_decay)


@dataclass(frozen=True)
class EstimatorSettings(DirectionSettings):
    estimator: Literal["shared", "per-sample"] = option(
        "shared", "one direction u for the batch as in the paper, or one for each sample of it"
    )


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


class Estimator(Protocol[Loss]):
    def __call__(
        self, forward: Forward, theta: Floats, objective: Loss, size: float, rng: Generator
    ) -> Estimate:
        """The gradient of the objective at theta, from perturbations of the given size c."""
        ...

    def cosine(self, parameters: int, batch: int) -> float:
        """Expected cosine between an estimate and the gradient; the rest is noise."""
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

    def cosine(self, parameters: int, batch: int) -> float:
        return math.sqrt(min(self.pairs / parameters, 1.0))


@dataclass(frozen=True)
class PerSample:
    """g = 1/k sum_i sum_j f_ij u_ij / 2c: every sample j of the batch has directions of its own.

    A pass over B samples then looks into B directions, for the loss outside the network is known:
    f_ij is what sample j's own change does to it. Unbiased up to O(c^2), as Eq. 2 is, and where the
    samples' gradients agree its variance is B times smaller.
    """

    pairs: int  # k
    directions: Directions = "gaussian"

    def __call__(
        self,
        forward: Forward,
        theta: Floats,
        objective: SampleObjective,
        size: float,
        rng: Generator,
    ) -> Estimate:
        gradient = np.zeros_like(theta)
        outputs: list[Outputs] = []
        for _ in range(self.pairs):
            u, credit = draw(self.directions, (forward.batch, len(theta)), rng)
            plus, minus = forward(theta + size * u), forward(theta - size * u)
            slopes = objective.differences(plus, minus) / (2 * size * self.pairs)  # [batch]
            gradient += slopes.astype(np.float32) @ credit
            outputs += [plus, minus]
        return Estimate(gradient, tuple(objective(side) for side in outputs), tuple(outputs))

    def cosine(self, parameters: int, batch: int) -> float:
        return math.sqrt(min(self.pairs * batch / parameters, 1.0))


def estimator_of(settings: EstimatorSettings) -> Estimator[SampleObjective]:
    kind = PerSample if settings.estimator == "per-sample" else SharedDirections
    return kind(settings.pairs, settings.directions)


def draw(
    directions: Directions, shape: int | tuple[int, ...], rng: Generator
) -> tuple[Floats, Floats]:
    """A direction u, and the vector its difference is credited to.

    Gaussian: u ~ N(0, I), credited to u. Segmented uniform, as in SPSA: u ~ +-U[0.5, 1], whose
    coordinates are never near zero, credited to 1 / u. Both make Eq. 2 unbiased.
    """
    if directions == "gaussian":
        u = rng.standard_normal(shape, dtype=np.float32)
        return u, u
    signs = np.where(rng.random(shape, dtype=np.float32) < 0.5, np.float32(-1), np.float32(1))
    u = signs * (0.5 + 0.5 * rng.random(shape, dtype=np.float32))
    return u, 1 / u
