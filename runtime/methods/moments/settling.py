"""When a stream's alignment is written into the weights, and which one it is.

For the first batches it is made within each pass; then it is written down, and again as the images
behind it have doubled, in the end every two windows of the running moments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.format.moments import SourceMoments
from zotta_edge.runtime.engine.engine import TensorSession
from zotta_edge.runtime.methods.moments.passes import MomentPasses
from zotta_edge.runtime.methods.moments.running import RunningMoments
from zotta_edge.runtime.methods.moments.settings import RunningMomentSettings

_LONGEST = 2  # windows of the running moments: a new session takes as long as some 30 images


@dataclass(frozen=True)
class Settled:
    """An alignment in force."""

    cone: TensorSession
    running: Floats  # [1, 2 D]
    noise: float


class Settling:
    """Counts images, and writes the alignment down when it is time."""

    def __init__(
        self, passes: MomentPasses, source: SourceMoments, settings: RunningMomentSettings
    ) -> None:
        self._passes, self._source, self._settings = passes, source, settings
        self.reset()

    def reset(self) -> None:
        self.now: Settled | None = None
        self._seen, self._next = 0, self._settings.moment_settled

    def observe(self, images: int, running: RunningMoments, noise: float) -> None:
        """After a batch that `running` has taken in."""
        self._seen += images
        if self._seen >= self._next:
            self._next = self._seen + min(self._seen, _LONGEST * self._settings.moment_window)
            self._settle(running.mean, noise)

    def _settle(self, running: Floats, noise: float) -> None:
        cone = self._passes.settle(self._source, running, noise)
        self.now = Settled(cone, running, noise)

    def state(self) -> dict[str, NDArray[Any]]:
        now, width = self.now, 2 * int(self._source.ends[-1])
        return {
            "seen": np.array([self._seen, self._next, now is not None]),
            "running": now.running if now else np.zeros((1, width), np.float32),
            "noise": np.array([now.noise if now else 0.0]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._seen, self._next, settled = map(int, state["seen"])
        self.now = None
        if settled:
            self._settle(state["running"].astype(np.float32), float(state["noise"][0]))
