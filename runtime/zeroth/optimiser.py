"""How a gradient becomes a step."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats


class Optimiser(Protocol):
    def step(self, theta: Floats, gradient: Floats, rate: float) -> Floats:
        """The next theta; the one given is left as it is, for readers may still hold it."""
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
