"""What ZOA learned on earlier domains."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.zoa.settings import ZoaSettings


class Bank:
    """Deltas of earlier domains and the source's, which is zero and always the first."""

    def __init__(self, parameters: int, settings: ZoaSettings) -> None:
        self._parameters, self._settings = parameters, settings
        self.reset()

    def reset(self) -> None:
        rows = self._settings.zoa_bank + 1
        self.deltas: Floats = np.zeros((rows, self._parameters), np.float32)
        self.alphas: Floats = np.zeros(rows, np.float32)
        self.used = 1

    def mixed(self, alphas: Floats) -> Floats:
        """sum_i softmax(10 alpha)_i delta_i, [d]; alphas [used]."""
        weights = np.exp(self._settings.zoa_temperature * (alphas - alphas.max()))
        mixed: Floats = (weights / weights.sum()).astype(np.float32) @ self.deltas[: self.used]
        return mixed

    def add(self, delta: Floats) -> None:
        """Keep a delta with the best alpha so far; a full bank drops one of two alike."""
        deltas, alphas = self.deltas.copy(), self.alphas.copy()
        if self.used > self._settings.zoa_bank:
            gone = _most_similar(deltas[1 : self.used]) + 1
            deltas[gone:-1], alphas[gone:-1] = deltas[gone + 1 :], alphas[gone + 1 :]
            self.used -= 1
        deltas[self.used], alphas[self.used] = delta, alphas[: self.used].max()
        self.deltas, self.alphas = deltas, alphas
        self.used += 1

    def state(self) -> dict[str, NDArray[Any]]:
        return {"deltas": self.deltas, "alphas": self.alphas, "used": np.array([self.used])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.deltas, self.alphas = state["deltas"].copy(), state["alphas"].copy()
        self.used = int(state["used"][0])


def _most_similar(deltas: Floats) -> int:
    """The earlier one of the two deltas with the largest cosine."""
    unit = deltas / np.maximum(np.linalg.norm(deltas, axis=1, keepdims=True), 1e-12)
    cosines = np.triu(unit @ unit.T, 1) + np.tril(np.full((len(unit), len(unit)), -np.inf))
    return int(np.argmax(cosines) // len(unit))
