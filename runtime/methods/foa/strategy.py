"""CMA-ES between two batches: asked for candidates, told their losses, saved and restored."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.methods.foa.settings import FoaSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.statistics import Doubles


class Strategy:
    """CMA-ES of the `cma` package, with a diagonal covariance, held in plain arrays.

    d^2 covariances can be neither learned from some dozens of generations nor kept on a device. The
    package's object is made anew from the arrays for each generation, so they are all there is to
    save, and goes on as one that was never interrupted.
    """

    def __init__(self, parameters: int, settings: FoaSettings) -> None:
        self._cma = _cma()
        self._parameters, self._settings = parameters, settings
        self.reset()

    def reset(self) -> None:
        self._rng: Generator = np.random.default_rng(self._settings.seed)
        self._vectors: Doubles = np.zeros((4, self._parameters))  # mean, deviations, two paths
        self._vectors[1] = 1.0
        self._sigma, self.generation = self._settings.foa_sigma, 0

    def ask(self) -> tuple[Any, list[Doubles]]:
        """The strategy, for `tell`, and its candidates, each [d]."""
        mean, deviations, path, sigma_path = self._vectors
        strategy = self._cma.CMAEvolutionStrategy(
            mean,
            self._sigma,
            {
                "popsize": self._settings.foa_candidates - 1,
                "CMA_diagonal": True,
                "CMA_stds": deviations,
                "AdaptSigma": self._cma.sigma_adaptation.CMAAdaptSigmaCSA,
                "randn": lambda *shape: self._rng.standard_normal(shape),
                "seed": np.nan,  # leaves numpy's global generator alone
                "verbose": -9,
            },
        )
        strategy.adapt_sigma.initialize(strategy)
        strategy.adapt_sigma.ps, strategy.pc = sigma_path.copy(), path.copy()
        return strategy, strategy.ask()

    def tell(self, strategy: Any, candidates: list[Doubles], losses: list[float]) -> None:
        strategy.countiter, strategy.mean_old = self.generation, strategy.mean
        strategy.tell(candidates, losses)
        deviations = np.broadcast_to(strategy.sigma_vec.scaling, strategy.mean.shape)
        paths = strategy.pc, strategy.adapt_sigma.ps
        self._vectors = np.stack([strategy.mean, deviations, *paths])
        self._sigma, self.generation = float(strategy.sigma), self.generation + 1

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "vectors": self._vectors,
            "sigma": np.array([self._sigma]),
            "generation": np.array([self.generation]),
            "rng": states.rng_to_array(self._rng),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._vectors, self._sigma = state["vectors"], float(state["sigma"][0])
        self.generation = int(state["generation"][0])
        self._rng = states.rng_from_array(state["rng"])


def _cma() -> Any:
    try:
        import cma
    except ImportError:
        raise ZottaError(
            "foa needs the cma package: install it with `pip install 'zotta-edge[bench]'`"
        ) from None
    return cma
