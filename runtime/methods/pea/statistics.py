"""Mean and covariance of a block's tokens or pixels: the source's and the stream's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.runtime.watch.statistics import Doubles

_LEAST = 1e-5  # eigenvalue


@dataclass(frozen=True)
class Gaussian:
    mean: Doubles  # [C]
    covariance: Doubles  # [C, C]

    @classmethod
    def of(cls, rows: Floats, prior: "Gaussian | None" = None) -> "Gaussian":
        """Of rows [n, C]; a prior's covariance counts as C of them: few have none of their own."""
        x = rows.astype(np.float64)
        mean = x.mean(axis=0)
        scatter = (x - mean).T @ (x - mean)
        if prior is None:
            return cls(mean, scatter / max(len(x) - 1, 1))
        count = len(mean)
        return cls(mean, (scatter + count * prior.covariance) / (len(x) + count))

    def towards(self, other: "Gaussian", share: float) -> "Gaussian":
        return Gaussian(
            self.mean + share * (other.mean - self.mean),
            self.covariance + share * (other.covariance - self.covariance),
        )

    def distance(self, other: "Gaussian") -> float:
        """|mu - mu'| + |var - var'|."""
        variances = np.diag(self.covariance) - np.diag(other.covariance)
        return float(np.linalg.norm(self.mean - other.mean) + np.linalg.norm(variances))


def coloured(rows: Floats, stream: Gaussian, source: Gaussian, share: float) -> Floats:
    """x + w ((x - mu) Sigma^-1/2 Sigma_S^1/2 + mu_S - x): whitened, then coloured."""
    move = _power(stream.covariance, -0.5) @ _power(source.covariance, 0.5)
    blend = (1 - share) * np.eye(len(move)) + share * move
    shift = share * (source.mean - stream.mean @ move)
    aligned: Floats = rows @ blend.astype(np.float32) + shift.astype(np.float32)
    return aligned


def read_statistics(path: str, names: Sequence[str]) -> list[Gaussian]:
    """What `zotta-edge calibrate --token-statistics` wrote."""
    if not path:
        raise ZottaError(
            "pea needs the covariance of the source's features: run `zotta-edge calibrate MODEL "
            "--source DIR --token-statistics FILE.npz` and set pea_statistics=FILE.npz"
        )
    try:
        with np.load(path) as stored:
            return [Gaussian(stored[f"{name}.mean"], stored[f"{name}.cov"]) for name in names]
    except (OSError, ValueError, KeyError) as error:
        raise ZottaError(
            f"{path} holds no token statistics of this model ({error}): write it again with "
            "`zotta-edge calibrate MODEL --source DIR --token-statistics FILE.npz`"
        ) from None


def _power(matrix: Doubles, exponent: float) -> Doubles:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    powers: Doubles = (vectors * np.maximum(values, _LEAST) ** exponent) @ vectors.T
    return powers
