"""Degraded copies of source images, made when they are asked for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.spoiling import degrade, drawn
from zotta_edge.runtime.io.images import Image


@dataclass(frozen=True)
class Copies:
    """The images themselves, and after them a degraded copy of each, several times over.

    >>> grey = np.full((2, 32, 32, 1), 128, np.uint8)
    >>> copies = Copies(grey, times=3, seed=0)
    >>> len(copies), copies.of[:5].tolist(), copies[0:8].shape
    (8, [0, 1, 0, 1, 0], (8, 32, 32, 1))
    """

    images: Image  # [n, height, width, C]
    times: int
    seed: int

    def __len__(self) -> int:
        return len(self.images) * (1 + self.times)

    @property
    def of(self) -> NDArray[np.intp]:
        """Which image each is a copy of."""
        return np.tile(np.arange(len(self.images)), 1 + self.times)

    def kind(self, row: int) -> str:
        """Its only degradation; empty for an image as it is, and for one that was spoilt twice."""
        if row < len(self.images):
            return ""
        names, _ = drawn(self._rng(row))
        return names[0] if len(names) == 1 else ""

    def _rng(self, row: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, row])

    def __getitem__(self, rows: slice) -> Image:
        return np.stack([self._copy(row) for row in range(*rows.indices(len(self)))])

    def _copy(self, row: int) -> Image:
        image: Image = self.images[row % len(self.images)]
        if row < len(self.images):
            return image
        rng = self._rng(row)
        names, strengths = drawn(rng)
        return degrade(image, names, strengths.tolist(), int(rng.integers(2**31)))
