"""A ledger of forward passes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.runtime.methods.primed.settings import PrimedSettings


class PassBudget:
    """Passes x images that may be spent beyond the one pass that answers an image.

    A batch earns `budget - 1` passes an image, up to `savings`. What is spent may exceed the
    credit once; the debt is then paid off first.
    """

    def __init__(self, settings: PrimedSettings) -> None:
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        self.credit = 0.0

    def earn(self, images: int) -> None:
        earned = (self._settings.budget - 1) * images
        self.credit = min(self.credit + earned, self._settings.savings)

    def spend(self, passes: float) -> None:
        self.credit -= passes

    def state(self) -> dict[str, NDArray[Any]]:
        return {"credit": np.array([self.credit])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.credit = float(state["credit"][0])
