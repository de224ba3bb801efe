"""alpha-BN: You, Li and Zhao, Test-time Batch Statistics Calibration, 2021.

Statistics are (1 - alpha) of the source's and alpha of the batch's, whatever the batch's size. TTN
(Lim et al., ICLR 2023) learns an alpha for each channel before deployment, from labelled source
images and their gradients: `benchmarks/ttn.py` does, and `alpha_file` is what it wrote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE, Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, Stateless


@dataclass(frozen=True)
class AlphaBatchNormSettings(MethodSettings):
    """The best of 0.1, 0.3 and 0.6 on the four extra corruptions."""

    alpha_bn: float = option(0.3, "alpha, the batch's share of the statistics", low=0, high=1)
    alpha_file: str = option("", "TTN's alphas, one a channel, from benchmarks/ttn.py; none: one")


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
        if settings.alpha_file:
            self._graph = engine.file.rewritten("channels' alphas", _with_channel_shares)
        else:
            self._graph = engine.file.rewritten("alpha statistics", _with_batch_statistics)
        asked = [name for name in self._graph.inputs if name != IMAGE]
        alpha = np.array([settings.alpha_bn], np.float32)
        file = settings.alpha_file
        self._shares = _read(file, asked) if file else dict.fromkeys(asked, alpha)

    def predict(self, images: Floats) -> Answer:
        outputs = self._graph({IMAGE: images, **self._shares})
        self._engine.count(len(images))
        return Answer(self._engine.gathered(outputs).logits, False, None)

    read = predict


def _with_batch_statistics(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.methods.bn_adapt.batch_statistics import with_batch_statistics

    return with_batch_statistics(content, path, "alpha_bn")


def _with_channel_shares(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.methods.bn_adapt.batch_statistics import with_channel_shares

    return with_channel_shares(content, path, "alpha_bn")


def _read(path: str, asked: Sequence[str]) -> dict[str, Floats]:
    """The alphas of each input that ends in a norm's name, the longest: `bn` is in `block.bn`."""
    try:
        with np.load(path) as stored:
            named = {one: [name for name in stored if one.endswith(f".{name}")] for one in asked}
            return {one: stored[max(names, key=len)] for one, names in named.items()}
    except (OSError, ValueError) as error:
        raise ZottaError(
            f"{path} holds no alphas of this model ({error}): write it again with benchmarks/ttn.py"
        ) from None
