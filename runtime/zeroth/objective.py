"""What adaptation makes small: Eq. 5, entropy plus Spatial Feature Aggregation Alignment."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from zotta_edge.format import Floats, Kind
from zotta_edge.options import Options, option
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.watch.statistics import Doubles, Queue, Source, moments

Reduction = Literal["mean", "sum", "whole"]


@dataclass(frozen=True)
class EntropySettings(Options):
    reduction: Reduction = option(
        "mean",
        "Eq. 5 over a batch of B: sum H + SFAA as it is written (sum), that as a whole divided by "
        "B (whole), or mean H + SFAA, where SFAA counts B times as much (mean)",
    )


@dataclass(frozen=True)
class ObjectiveSettings(EntropySettings):
    entropy_weight: float | None = option(
        None,
        "lambda1 of Eq. 5; unset: the paper's 1 for transformers, 0.1 for convolutional networks",
        low=0,
    )
    alignment_weight: float | None = option(
        None,
        "lambda2 of Eq. 5; unset: the paper's 0.4 for transformers, 1 for convolutional networks",
        low=0,
    )

    def weights(self, kind: Kind) -> tuple[float, float]:
        """lambda1 and lambda2: given, or the paper's for this kind of network."""
        entropy, alignment = (1.0, 0.4) if kind == "tokens" else (0.1, 1.0)
        return (
            entropy if self.entropy_weight is None else self.entropy_weight,
            alignment if self.alignment_weight is None else self.alignment_weight,
        )


class Objective(Protocol):
    def __call__(self, outputs: Outputs) -> float:
        """The loss of one pass over a batch."""
        ...


class SampleObjective(Objective, Protocol):
    def differences(self, plus: Outputs, minus: Outputs) -> Doubles:
        """What each sample's change from one pass to another does to the loss, [batch]."""
        ...


@dataclass(frozen=True)
class EntropyAndAlignment:
    """Eq. 5: L = lambda1 sum_x H(x) + lambda2 sum_l |mu_l - mu_l^S|^2 + |sigma_l - sigma_l^S|^2.

    `reduction` says what is divided by the batch's size n: nothing ("sum"), all of it ("whole"), or
    the entropy alone ("mean"), where SFAA weighs n times as much against it as in the equation.
    """

    source: Source
    entropy_weight: float  # lambda1
    alignment_weight: float  # lambda2
    reduction: Reduction
    queue: Queue

    def __call__(self, outputs: Outputs) -> float:
        features, entropy = self.queue.beside(outputs)  # [n, D], [n]
        entropy_weight, alignment_weight = self._weights(len(entropy))
        mean, std = moments(features)
        aligned = np.square(mean - self.source.mean).sum()
        if len(features) > 1:  # a single sample has no spread
            aligned += np.square(std - self.source.std).sum()
        return float(entropy_weight * entropy.sum() + alignment_weight * aligned)

    def _weights(self, n: int) -> tuple[float, float]:
        """Of the summed entropy and of SFAA, for n samples."""
        return (
            self.entropy_weight / (1 if self.reduction == "sum" else n),
            self.alignment_weight / (n if self.reduction == "whole" else 1),
        )

    def differences(self, plus: Outputs, minus: Outputs) -> Doubles:
        """f_i = <dL/dv_i, v_i+ - v_i-> + lambda1 (H_i+ - H_i-) / n, [batch]; n is 1 for "sum".

        dL/dv is taken midway: perturbations that differ between the samples widen sigma on either
        side, in between they cancel.
        """
        above, entropy_above = self.queue.beside(plus)
        below, entropy_below = self.queue.beside(minus)
        gradient = self.feature_gradient((above + below) * np.float32(0.5))
        weight, _ = self._weights(len(above))
        difference: Doubles = np.einsum("id,id->i", gradient, above - below)
        difference += weight * (entropy_above - entropy_below)
        return difference[-len(plus.logits) :]  # those of the queue are zero, and come first

    def feature_gradient(self, features: Floats) -> Doubles:
        """dL/dv_i = 2 lambda2 ((mu - mu^S) + (sigma - sigma^S) (v_i - mu) / sigma) / n, [n, D].

        Divided by n once more where the whole loss is.
        """
        mean, std = moments(features)
        gradient = np.broadcast_to(mean - self.source.mean, features.shape)
        if len(features) > 1:
            # A channel that all samples agree on has no spread to follow.
            slope = np.divide(std - self.source.std, std, out=np.zeros_like(std), where=std > 0)
            gradient = gradient + slope * (features - mean)
        _, weight = self._weights(len(features))
        return (2 * weight / len(features)) * gradient
