"""PEA: Xiao et al., Architecture-Agnostic Test-Time Adaptation via Backprop-Free Embedding
Alignment, ICLR 2026.

Two passes a batch: the first tells how far each block is from the source, the second whitens and
colours what leaves each block, the more the further it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings
from zotta_edge.runtime.methods.pea.blocks import Blocks
from zotta_edge.runtime.methods.pea.statistics import Gaussian, coloured, read_statistics
from zotta_edge.runtime.methods.pea.views import views
from zotta_edge.runtime.watch.statistics import Doubles, entropies


@dataclass(frozen=True)
class PeaSettings(MethodSettings):
    """As published (code), for ViT-Base and batches of 64."""

    pea_statistics: str = option(
        "", "file that `zotta-edge calibrate --token-statistics` wrote for the model"
    )
    pea_momentum: float = option(0.02, "a batch's share of the running statistics", low=0, high=1)
    pea_smoothing: float = option(0.2, "alpha, of the running drift and entropy", low=0, high=1)
    pea_spike: float = option(4.0, "gamma, drift over its mean that starts a block anew", low=0)
    pea_entropy: float = option(1.0, "rise of the entropy that starts everything anew", low=0)
    pea_views: int = option(
        1, "views averaged: the image, a centre crop, its mirror image; published commands: 3",
        low=1, high=3,
    )  # fmt: skip


class Pea:
    """Progressive embedding alignment.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> AdaptiveModel.load(embedded.MODEL, method="pea")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: pea needs the covariance of the source's features: run ...
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: PeaSettings, events: Events) -> None:
        self._settings, self._layout = settings, engine.info.preprocessing.layout
        self._blocks = Blocks(engine)
        names = [layer.name for layer in self._blocks.layers]
        self._source = read_statistics(settings.pea_statistics, names)
        self.reset()

    def reset(self) -> None:
        self._stream = tuple(self._source)
        self._drift: Doubles = np.full(len(self._source), np.nan)  # nan: nothing seen yet
        self._entropy = np.nan
        self._weights: Doubles = np.zeros(len(self._source))
        self._updates = 0

    def predict(self, images: Floats) -> Answer:
        shown = views(images, self._settings.pea_views, self._layout)
        weights = self._distances(shown)
        stream, drift = list(self._stream), self._drift.copy()

        def seen(index: int, rows: Floats) -> Floats:
            return self._seen(index, rows, weights, stream, drift)

        answers = [self._blocks(view, seen) for view in shown]
        logits: Floats = np.mean(answers, axis=0, dtype=np.float32)
        self._stream, self._drift, self._weights = tuple(stream), drift, weights
        self._updates += 1
        self._watch(float(entropies(logits).mean()))
        return Answer(logits, True, None)

    def read(self, images: Floats) -> Answer:
        stream, weights = self._stream, self._weights

        def aligned(index: int, rows: Floats) -> Floats:
            return self._aligned(index, rows, stream[index], float(weights[index]))

        return Answer(self._blocks(images, aligned), False, None)

    def _distances(self, shown: list[Floats]) -> Doubles:
        """Of each block from the source, from 0 for the nearest to 1 for the furthest."""
        found = np.zeros(len(self._source))

        def measured(index: int, rows: Floats) -> Floats:
            found[index] += Gaussian.of(rows).distance(self._source[index]) / len(shown)
            return rows

        for view in shown:
            self._blocks(view, measured)
        reach = found.max() - found.min()
        weights: Doubles = (found - found.min()) / reach if reach > 0 else np.zeros_like(found)
        return weights

    def _seen(
        self, index: int, rows: Floats, weights: Doubles, stream: list[Gaussian], drift: Doubles
    ) -> Floats:
        """Take a batch into a block's statistics, and align it with them."""
        own, batch = self._settings, Gaussian.of(rows, self._source[index])
        if np.isnan(drift[index]):
            stream[index], drift[index] = batch, 0.0
        else:
            moved = float(np.abs(batch.mean - stream[index].mean).mean())
            drift[index] += own.pea_smoothing * (moved - drift[index])
            spike = moved > own.pea_spike * drift[index] > 0
            stream[index] = stream[index].towards(batch, 1.0 if spike else own.pea_momentum)
        return self._aligned(index, rows, stream[index], float(weights[index]))

    def _aligned(self, index: int, rows: Floats, stream: Gaussian, weight: float) -> Floats:
        return coloured(rows, stream, self._source[index], weight) if weight > 1e-3 else rows

    def _watch(self, entropy: float) -> None:
        """Forget the stream when answers become much less sure."""
        own, known = self._settings, not np.isnan(self._entropy)
        if known and entropy > self._entropy + own.pea_entropy:
            self._stream = tuple(self._source)
            self._drift = np.full(len(self._source), np.nan)
        past = self._entropy if known else entropy
        self._entropy = past + own.pea_smoothing * (entropy - past)

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "means": np.concatenate([block.mean for block in self._stream]),
            "covariances": np.concatenate([block.covariance.ravel() for block in self._stream]),
            "weights": self._weights,
            "drift": self._drift,
            "entropy": np.array([self._entropy]),
            "updates": np.array([self._updates]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        sizes = [len(block.mean) for block in self._source]
        means = np.split(state["means"], np.cumsum(sizes)[:-1])
        flat = np.split(state["covariances"], np.cumsum(np.square(sizes))[:-1])
        covariances = [own.reshape(size, size) for own, size in zip(flat, sizes, strict=True)]
        self._stream = tuple(map(Gaussian, means, covariances))
        self._weights, self._drift = state["weights"], state["drift"]
        self._entropy, self._updates = float(state["entropy"][0]), int(state["updates"][0])

    def status(self) -> dict[str, Any]:
        return {"steps": self._updates, "weights": [round(float(w), 4) for w in self._weights]}
