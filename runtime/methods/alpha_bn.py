"""alpha-BN: You, Li and Zhao, Test-time Batch Statistics Calibration, 2021.

Statistics are (1 - alpha) of the source's and alpha of the batch's, whatever the batch's size. TTN
(Lim et al., ICLR 2023) learns an alpha for each channel before deployment, from labelled source
images and their gradients; with one alpha for all it is this.
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
class AlphaBatchNormSettings(MethodSettings):
    """The best of 0.1, 0.3 and 0.6 on the four extra corruptions."""

    alpha_bn: float = option(0.3, "alpha, the batch's share of the statistics", low=0, high=1)


class AlphaBatchNorm(Stateless):
    """BN-Adapt with a share that does not depend on the batch.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> AdaptiveModel.load(embedded.MODEL, method="alpha_bn")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: ...has no BatchNorm, whose statistics alpha_bn replaces: ...
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: AlphaBatchNormSettings, events: Events) -> None:
        self._engine = engine
        self._share = np.array([settings.alpha_bn], np.float32)
        self._graph = engine.file.rewritten("alpha statistics", _with_batch_statistics)
        self._input = next(name for name in self._graph.inputs if name != IMAGE)

    def predict(self, images: Floats) -> Answer:
        outputs = self._graph({IMAGE: images, self._input: self._share})
        self._engine.count(len(images))
        return Answer(self._engine.gathered(outputs).logits, False, None)

    read = predict


def _with_batch_statistics(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.methods.bn_adapt.batch_statistics import with_batch_statistics

    return with_batch_statistics(content, path, "alpha_bn")
