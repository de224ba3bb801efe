"""BN-Adapt: Schneider et al., Improving Robustness against Common Corruptions, NeurIPS 2020.

BatchNorm uses the statistics of the batch, mixed with the source's; nothing is learned or kept.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zotta_edge.format import IMAGE, Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, Stateless


@dataclass(frozen=True)
class BatchNormSettings(MethodSettings):
    """As in the paper."""

    bn_prior: float = option(16.0, "N, samples that the source's statistics count as", low=0)


class BatchNormAdaptation(Stateless):
    """The batch has a share of n / (n + N) in mean and variance.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> AdaptiveModel.load(embedded.MODEL, method="bn_adapt")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: ...has no BatchNorm, whose statistics bn_adapt replaces: ...
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: BatchNormSettings, events: Events) -> None:
        self._engine, self._prior = engine, settings.bn_prior
        self._graph = engine.file.rewritten("batch statistics", _with_batch_statistics)
        self._share = next(name for name in self._graph.inputs if name != IMAGE)

    def predict(self, images: Floats) -> Answer:
        share = np.array([len(images) / (len(images) + self._prior)], np.float32)
        outputs = self._graph({IMAGE: images, self._share: share})
        self._engine.count(len(images))
        return Answer(self._engine.gathered(outputs).logits, False, None)

    read = predict


def _with_batch_statistics(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.methods.bn_adapt.batch_statistics import with_batch_statistics

    return with_batch_statistics(content, path)
