"""What adaptation makes small: Eq. 5, entropy plus Spatial Feature Aggregation Alignment."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from zotta_edge.runtime.engine import Outputs
from zotta_edge.runtime.statistics import Queue, Source, moments


class Objective(Protocol):
    def __call__(self, outputs: Outputs) -> float:
        """The loss of one pass over a batch."""
        ...


@dataclass(frozen=True)
class EntropyAndAlignment:
    """Eq. 5: L = lambda1 sum_x H(x) + lambda2 sum_l |mu_l - mu_l^S|^2 + |sigma_l - sigma_l^S|^2.

    With `reduction` "mean" the sum over the batch is a mean, so that one learning rate serves all
    batch sizes.
    """

    source: Source
    entropy_weight: float  # lambda1
    alignment_weight: float  # lambda2
    reduction: Literal["mean", "sum"]
    queue: Queue

    def __call__(self, outputs: Outputs) -> float:
        features, entropy = self.queue.beside(outputs)  # [n, D], [n]
        reduced = entropy.mean() if self.reduction == "mean" else entropy.sum()
        mean, std = moments(features)
        aligned = np.square(mean - self.source.mean).sum()
        if len(features) > 1:  # one sample has no spread: its sigma of 0 says nothing
            aligned += np.square(std - self.source.std).sum()
        return float(self.entropy_weight * reduced + self.alignment_weight * aligned)
