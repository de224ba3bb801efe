"""LAME: Boudiaf et al., Parameter-free Online Test-time Adaptation, CVPR 2022.

The model stays as it is; the answers of a batch are made to agree where features are neighbours.
"""

from typing import ClassVar

import numpy as np

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.methods.contract import Answer, Stateless
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.statistics import log_softmax

NEIGHBOURS = 5  # of each sample in the affinity W
ROUNDS = 100  # of the fixed-point iteration, at most
TOLERANCE = 1e-8  # relative change of the energy at which it has converged


class Lame(Stateless):
    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine

    def predict(self, images: Floats) -> Answer:
        outputs = self._engine.cone(self._engine.stem(images), {})
        agreed = agree(log_softmax(outputs.logits), affinity(outputs.embedding))
        return Answer(agreed, False, None)

    read = predict


def affinity(features: Floats) -> Floats:
    """W [batch, batch]: 1 between a sample and its nearest by cosine, made symmetric by a mean."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)  # no sample is its own neighbour
    count = min(NEIGHBOURS, len(features) - 1)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    weights = np.zeros(similarity.shape, np.float32)
    np.put_along_axis(weights, nearest, 1, axis=1)
    return np.asarray((weights + weights.T) / 2, np.float32)


def agree(log_p: Floats, weights: Floats) -> Floats:
    """log Y at the fixed point of Y <- softmax(log p + W Y), which lowers the Laplacian energy

    E(Y) = sum_i Y_i (log Y_i - log p_i) - 1/2 sum_ij w_ij Y_i Y_j.
    """
    log_y, energy = log_p, np.nan
    for _ in range(ROUNDS):
        pull = weights @ np.exp(log_y)
        log_y = log_softmax(log_p + pull)
        y = np.exp(log_y)
        before, energy = energy, float((y * (log_y - log_p - weights @ y / 2)).sum())
        if abs(energy - before) <= TOLERANCE * abs(before):
            break
    return log_y
