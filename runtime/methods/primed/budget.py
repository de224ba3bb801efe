"""A ledger of forward passes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.options import Options, option


@dataclass(frozen=True)
class BudgetSettings(Options):
    budget: float = option(
        1.08,
        "passes an image that may be spent on average, to try filters (a stream's first trial, 60 "
        "passes, is paid for afterwards) and to answer again after a step; from 2 on, drifted "
        "images are also answered mirrored, where the model gives mirror images the same answers",
        low=1,
    )
    savings: float = option(
        256.0,
        "passes that can be saved up: a long quiet stream does not pay for all of the next one",
        low=0,
    )


class PassBudget:
    """Passes x images that may be spent beyond the one pass that answers an image.

    A batch earns `budget - 1` passes an image, up to `savings`. What is spent may exceed the
    credit once; the debt is then paid off first.
    """

    def __init__(self, settings: BudgetSettings) -> None:
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
