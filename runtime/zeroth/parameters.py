"""theta: the affines of the chosen layers as one flat vector."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, ModelInfo


class Parameters:
    """Where each scale and shift of the chosen layers lies in theta."""

    def __init__(self, info: ModelInfo, chosen: Iterable[int]) -> None:
        norms = [norm for index in chosen for norm in info.layers[index].norms]
        self.names = [name for norm in norms for name in (norm.scale, norm.shift)]
        self._shapes = [norm.shape[1:] for norm in norms for _ in range(2)]
        self._ends = np.cumsum([norm.channels for norm in norms for _ in range(2)])[:-1]
        values = [np.ravel(info.affines[name]) for name in self.names]
        # Where the shifts are in theta: a norm's come after its scales.
        parts = [np.repeat([False, True], norm.channels) for norm in norms]
        self.shifts: NDArray[np.bool_] = np.concatenate([np.empty(0, bool), *parts])
        self.source: Floats = np.concatenate(values) if values else np.empty(0, np.float32)
        self.source.flags.writeable = False

    def __len__(self) -> int:
        return len(self.source)

    def canonical(self, theta: Floats) -> Floats:
        """`theta`, or `source` itself where they are equal: whether it moved is asked with `is`."""
        return self.source if np.array_equal(theta, self.source) else theta

    def affines(self, theta: Floats) -> dict[str, Floats]:
        """The graph's inputs; theta is [d], or [batch, d] for parameters of each sample's own."""
        rows = np.atleast_2d(theta)
        parts = np.split(rows, self._ends, axis=1) if self.names else []
        return {
            name: np.ascontiguousarray(part).reshape(len(rows), *shape)
            for name, part, shape in zip(self.names, parts, self._shapes, strict=True)
        }
