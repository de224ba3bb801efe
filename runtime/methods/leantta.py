"""LeanTTA: Dong et al., Backpropagation-Free and Stateless Quantized Test-Time Adaptation, 2025.

Every image is normalized by statistics between the source's and its own, and the further its own
are from the source's, the less they count. Nothing is kept from one image to the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from zotta_edge.format import IMAGE, Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, Stateless

if TYPE_CHECKING:
    from zotta_edge.graph.index import Graph
    from zotta_edge.runtime.methods.bn_adapt.batch_statistics import BatchNorm, Shapes

_TAU, _POWER = "zotta.leantta.tau", "zotta.leantta.power"


@dataclass(frozen=True)
class LeanTtaSettings(MethodSettings):
    """The equations are the paper's; the constants were chosen on the four extra corruptions."""

    leantta_tau: float = option(0.7, "tau, the source's share before the distance", low=0, high=1)
    leantta_power: float = option(1.0, "lambda, the power of the distance d", low=0)


class LeanTta(Stateless):
    """mu = d^lambda mu_S + (1 - d^lambda) (tau mu_S + (1 - tau) mu_image), the variance alike.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> AdaptiveModel.load(embedded.MODEL, method="leantta")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: ...has no BatchNorm, whose statistics leantta replaces: ...
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: LeanTtaSettings, events: Events) -> None:
        self._engine = engine
        self._constants = {
            _TAU: np.array([settings.leantta_tau], np.float32),
            _POWER: np.array([settings.leantta_power], np.float32),
        }
        self._graph = engine.file.rewritten("leantta", _with_instance_statistics)

    def predict(self, images: Floats) -> Answer:
        outputs = self._graph({IMAGE: images, **self._constants})
        self._engine.count(len(images))
        return Answer(self._engine.gathered(outputs).logits, False, None)

    read = predict


def _with_instance_statistics(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.methods.bn_adapt.batch_statistics import rewritten

    return rewritten(content, path, "leantta", _blend_all)


def _blend_all(graph: "Graph", norms: Sequence["BatchNorm"]) -> tuple["Shapes", "Shapes"]:
    """In units of `hat`, where mu_S is 0 and sigma_S^2 is 1; d = 1 - exp(-|mu_b|^2)."""
    from zotta_edge.runtime.methods.bn_adapt.batch_statistics import EPSILON, Writer

    for norm in norms:
        write = Writer(graph, norm)
        positions = [axis for axis in norm.axes if axis > 0]
        (channel,) = set(range(len(norm.axes) + 1)) - set(norm.axes)
        one = write.constant(1.0)
        mean, variance = write.moments(positions)
        own = write.op("Sub", one, _TAU)
        mean_b = write.op("Mul", mean, own)
        variance_b = write.op("Add", write.op("Mul", variance, own), _TAU)
        squares = write.mean(write.op("Mul", mean_b, mean_b), [channel])
        length = write.op("Mul", squares, write.constant(float(norm.channels)))
        distance = write.op("Sub", one, write.op("Exp", write.op("Neg", length)))
        kept = write.op("Sub", one, write.op("Pow", distance, _POWER))  # the image's share
        spread = write.op("Mul", write.op("Sub", variance_b, one), kept)
        total = write.op("Add", write.op("Add", spread, one), write.constant(EPSILON))
        write.normalized(write.op("Mul", mean_b, kept), total)
    return {_TAU: [1], _POWER: [1]}, {}
