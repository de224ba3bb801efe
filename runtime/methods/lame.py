"""LAME: Boudiaf et al., Parameter-free Online Test-time Adaptation, CVPR 2022.

The model stays as it is; the answers of a batch are made to agree where features are neighbours.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings, Stateless
from zotta_edge.runtime.watch.statistics import log_softmax


@dataclass(frozen=True)
class LameSettings(MethodSettings):
    """As in the published code."""

    lame_neighbours: int = option(5, "k, of each sample in the affinity W", low=1)
    lame_rounds: int = option(100, "of the fixed-point iteration, at most", low=1)
    lame_tolerance: float = option(
        1e-8, "relative change of the energy at which it has converged", low=0
    )


class Lame(Stateless):
    """Corrects the answers of a batch; the parameters stay the source's.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> digits = embedded.digits(16)
    >>> model = AdaptiveModel.load(embedded.MODEL, method="lame")
    >>> model.predict(digits).logits.shape
    (16, 10)
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: LameSettings, events: Events) -> None:
        self._engine, self._settings = engine, settings

    def predict(self, images: Floats) -> Answer:
        outputs = self._engine.cone(self._engine.stem(images), {})
        weights = affinity(outputs.embedding, self._settings)
        agreed = agree(log_softmax(outputs.logits), weights, self._settings)
        return Answer(agreed, False, None)

    read = predict


def affinity(features: Floats, settings: LameSettings) -> Floats:
    """W [batch, batch]: 1 between a sample and its nearest by cosine, made symmetric by a mean."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)  # no sample is its own neighbour
    count = min(settings.lame_neighbours, len(features) - 1)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    weights = np.zeros(similarity.shape, np.float32)
    np.put_along_axis(weights, nearest, 1, axis=1)
    return np.asarray((weights + weights.T) / 2, np.float32)


def agree(log_p: Floats, weights: Floats, settings: LameSettings) -> Floats:
    """log Y at the fixed point of Y <- softmax(log p + W Y), which lowers the Laplacian energy

    E(Y) = sum_i Y_i (log Y_i - log p_i) - 1/2 sum_ij w_ij Y_i Y_j.
    """
    log_y, energy = log_p, np.nan
    for _ in range(settings.lame_rounds):
        pull = weights @ np.exp(log_y)
        log_y = log_softmax(log_p + pull)
        y = np.exp(log_y)
        before, energy = energy, float((y * (log_y - log_p - weights @ y / 2)).sum())
        if abs(energy - before) <= settings.lame_tolerance * abs(before):
            break
    return log_y
