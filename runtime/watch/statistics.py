"""Statistics of a batch: pooled features, their moments, entropies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Calibration, Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.engine.engine import Outputs

Doubles = NDArray[np.float64]

_LEAST_SPREAD = 0.01  # of the widest channel's


def pooled(outputs: Outputs, first: int = 0) -> Floats:
    """v_l of the layers from `first` on side by side, [batch, D]: sums over layers are over D."""
    return np.concatenate(outputs.features[first:], axis=1)


def moments(features: Floats) -> tuple[Doubles, Doubles]:
    """mu and sigma of each channel over the batch, with 1/N as in the paper: two [D]."""
    mean = features.mean(axis=0, dtype=np.float64)
    return mean, np.sqrt(np.square(features - mean).mean(axis=0))


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probability: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probability


def entropies(logits: Floats) -> Floats:
    """H_i = - sum_c y_c log y_c, [batch]."""
    log_probability = log_softmax(logits)
    entropy: Floats = -(np.exp(log_probability) * log_probability).sum(axis=1)
    return entropy


def floored(std: NDArray[Any]) -> Doubles:
    """Each channel's spread as its unit, with a floor: a dead channel would outweigh all others."""
    largest = float(std.max()) or 1.0  # a source that does not vary at all
    unit: Doubles = np.maximum(std, _LEAST_SPREAD * largest, dtype=np.float64)
    return unit


def shrunk(shift: Doubles, variance: Doubles) -> Doubles:
    """A shift, less the share of its length that its sampling variance explains (James-Stein)."""
    length = float(np.square(shift).sum())
    kept: Doubles = shift * max(0.0, 1 - float(variance.sum()) / length) if length else shift
    return kept


@dataclass(frozen=True)
class QueueSettings(Options):
    queue: int = option(
        4,
        "samples behind the statistics: a smaller batch is filled up with the last ones' features",
        low=1,
    )


@dataclass(frozen=True)
class Source:
    """mu^S and sigma^S of layers side by side, and the N images behind them."""

    mean: Doubles  # [D]
    std: Doubles  # [D]
    samples: int
    ends: NDArray[np.intp]  # where each layer ends in D

    @classmethod
    def of(cls, calibration: Calibration, first: int = 0, last: int | None = None) -> "Source":
        """Of the layers from `first` on, up to and without `last`; there may be none."""
        mean, std = calibration.mean[first:last], calibration.std[first:last]
        return cls(
            np.concatenate([np.empty(0), *mean]).astype(np.float64),
            np.concatenate([np.empty(0), *std]).astype(np.float64),
            calibration.samples,
            np.cumsum([len(layer) for layer in mean]),
        )


class Queue:
    """The last few samples, which lend a batch that is too small statistics of its own.

    Features are kept, not images: a queued sample counts in mu and sigma as it was last computed
    and costs no pass. Only the new samples move with theta, so each contributes its own share of
    the gradient, and `size` batches of one add up to one step of a batch of `size`.
    """

    def __init__(self, size: int, channels: int) -> None:
        self.size = size
        self.features: Floats = np.empty((0, channels), np.float32)
        self.entropies: Floats = np.empty(0, np.float32)

    def beside(self, outputs: Outputs) -> tuple[Floats, Floats]:
        """Features [n, D] and entropies [n] of the batch, filled up to `size` from the queue."""
        features, entropy = pooled(outputs), entropies(outputs.logits)
        missing = min(self.size - len(features), len(self.features))
        if missing <= 0:
            return features, entropy
        return (
            np.concatenate([self.features[-missing:], features]),
            np.concatenate([self.entropies[-missing:], entropy]),
        )

    def push(self, outputs: Outputs) -> None:
        """Keep what the next batch may borrow: it brings one of the `size` samples itself."""
        if self.size == 1:
            return
        last = slice(1 - self.size, None)
        newest = Outputs(
            outputs.logits[last],
            tuple(layer[last] for layer in outputs.features),
            outputs.embedding,
        )
        features, entropy = self.beside(newest)
        self.features, self.entropies = features[last].copy(), entropy[last].copy()

    def reset(self) -> None:
        self.features, self.entropies = self.features[:0], self.entropies[:0]

    def state(self) -> dict[str, NDArray[Any]]:
        """Always of one shape: unused rows are zero."""
        used = len(self.features)
        features = np.zeros((self.size - 1, self.features.shape[1]), np.float32)
        features[:used] = self.features
        entropy = np.zeros(self.size - 1, np.float32)
        entropy[:used] = self.entropies
        return {"features": features, "entropies": entropy, "used": np.array([used])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        used = int(state["used"][0])
        self.features, self.entropies = state["features"][:used], state["entropies"][:used]
