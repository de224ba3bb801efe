"""How much may be spent on a suspicion: some at once, a small share of the images for good."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Allowance:
    """Comes back with every image, up to its first amount.

    >>> doubt = Allowance(8, share=0.5)
    >>> doubt.take(6), doubt.take(6)
    (6, 2)
    >>> doubt.earn(10)
    >>> doubt.take(6)
    5
    """

    def __init__(self, most: int, share: float) -> None:
        self._most, self._share = most, share
        self.reset()

    def reset(self) -> None:
        self._left = float(self._most)

    def earn(self, images: int) -> None:
        self._left = min(float(self._most), self._left + self._share * images)

    def take(self, wanted: int) -> int:
        """As many as are left of those that are wanted."""
        taken = min(wanted, int(self._left + 1e-9))
        self._left -= taken
        return taken

    def state(self) -> dict[str, NDArray[Any]]:
        return {"left": np.array([self._left])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._left = float(state["left"][0])
