"""The alignment itself: theta from how far the features are off.

r = mu(theta) - t J (theta - theta_S) - mu_S
theta <- theta_S - (J^T J + lambda s I)^-1 J^T r,      s = trace(J^T J) / d
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats, Prime
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.methods.primed.class_mix import ClassMix
from zotta_edge.runtime.methods.primed.gauss_newton import GaussNewton
from zotta_edge.runtime.methods.primed.offset import Offset
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.watch.statistics import Doubles, Source, pooled
from zotta_edge.runtime.watch.trust_region import Distance
from zotta_edge.runtime.zeroth.parameters import Parameters


class Alignment:
    """theta, and r as a running mean over about `window` samples of batches of any size.

    Parameters
    ----------
    distance
        Bounds how far theta may go from the source.
    """

    def __init__(
        self,
        prime: Prime,
        calibration: Calibration,
        parameters: Parameters,
        mix: ClassMix,
        distance: Distance,
        settings: PrimedSettings,
    ) -> None:
        self._first = min(prime.layers)  # no layer before it moves
        self._source = Source.of(calibration, self._first)
        self._newton = GaussNewton(prime, settings.damping)
        self._parameters, self._distance, self._settings = parameters, distance, settings
        variance = np.square(self._source.std)
        self._offset = Offset(variance, self._source.ends, mix, settings)  # r
        self.reset()

    def reset(self) -> None:
        self.steps = 0
        self.forget()

    def forget(self) -> None:
        """Back to the source, as for a stream that has just begun."""
        self.theta = self._parameters.source
        self._offset.reset()

    @property
    def at_source(self) -> bool:
        return self.theta is self._parameters.source

    @property
    def phase(self) -> str:
        return "watching" if self.at_source else "adapting"

    @property
    def distance(self) -> float:
        """|theta - theta_S| / |theta_S|."""
        return self._distance(self.theta)

    def is_large_step(self, before: Floats) -> bool:
        """Whether theta has moved enough from `before` for a batch to be answered again."""
        large = self._settings.large_step * np.linalg.norm(self._parameters.source)
        return bool(np.linalg.norm(self.theta - before) > large)

    def move(self, outputs: Outputs, weights: Doubles, explained: Floats | float = 0.0) -> None:
        """Take a batch that was answered with theta into r, and move theta to take r back.

        `explained` is what of each image's offset its own move accounts for.
        """
        self._observe(pooled(outputs, self._first) - explained, weights)
        offset, source = self._offset.significant(), self._parameters.source
        if not offset.any():
            self.theta = source
            return
        theta = source.copy()
        theta[self._parameters.shifts] += self._newton.step(offset)
        self.theta = self._distance.bounded(theta, self._settings.furthest)
        self.steps += 1

    def _observe(self, features: Floats, weights: Doubles) -> None:
        so_far = (self.theta - self._parameters.source)[self._parameters.shifts]
        moved = np.float32(self._settings.jacobian_trust) * self._newton.effect(so_far)  # t J ...
        self._offset.add(features - self._source.mean.astype(np.float32) - moved, weights)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"theta": self.theta, "steps": np.array([self.steps])} | self._offset.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._offset.restore(state)
        self.theta = self._parameters.canonical(state["theta"])
        self.steps = int(state["steps"][0])
