"""How a gradient becomes a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import Options, option


@dataclass(frozen=True)
class OptimiserSettings(Options):
    learning_rate: float = option(0.01, "eta of Eq. 1, size of a step", low=0)
    learning_rate_decay: float = option(
        0.0, "alpha, eta_t = eta / t^alpha at update t (SPSA: 0.602, paper: 0)", low=0
    )
    momentum: float = option(0.0, "beta of SGD (SPSA-GC: 0.9, paper: 0)", low=0, high=0.999)
    steps: int = option(1, "updates a batch, `step` in Algorithm 1", low=1)

    def rate(self, update: int) -> float:
        """eta_t of the given update, counted from 1."""
        return float(self.learning_rate / update**self.learning_rate_decay)


class Optimiser(Protocol):
    def step(self, theta: Floats, gradient: Floats, rate: float) -> Floats:
        """The next theta, as a new array: readers may still hold the given one."""
        ...

    def reset(self) -> None: ...

    def state(self) -> dict[str, NDArray[Any]]: ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...


class Sgd:
    """Eq. 1, theta <- theta - eta m with m <- beta m + g; the paper has beta = 0."""

    def __init__(self, parameters: int, momentum: float = 0.0) -> None:
        self.momentum = momentum
        self._velocity: Floats = np.zeros(parameters, np.float32)

    def step(self, theta: Floats, gradient: Floats, rate: float) -> Floats:
        self._velocity = np.float32(self.momentum) * self._velocity + gradient
        return theta - np.float32(rate) * self._velocity

    def reset(self) -> None:
        self._velocity = np.zeros_like(self._velocity)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"velocity": self._velocity}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._velocity = state["velocity"].astype(np.float32)
