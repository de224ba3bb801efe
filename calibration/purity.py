"""Clustering purity, Eq. 3: how well 2-means tells source samples from drifted ones."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.features import at_positions, by_layer, in_batches
from zotta_edge.calibration.samples import MIN_SAMPLES
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, ModelInfo
from zotta_edge.progress import Progress

Mask = NDArray[np.bool_]

STARTS = 16  # random pairs of samples that a clustering may start from
STEPS = 4  # Lloyd steps after which the best start is taken
APART = np.float32(8**0.5)  # along their axes: 4 from one position to another, 2 within one


@dataclass(frozen=True)
class Purities:
    values: tuple[float, ...]  # P_l
    seconds: tuple[float, float]  # of the forward passes, of the clustering


def layer_purities(
    path: str | Path,
    info: ModelInfo,
    source: Floats,
    drifted: Floats,
    seed: int = 0,
    threads: int | None = None,
) -> Purities:
    """P_l of every layer, from as many preprocessed images of either domain."""
    import sklearn.cluster  # noqa: F401  here, or its loading would count as clustering

    n = min(len(source), len(drifted))
    if n < MIN_SAMPLES:
        raise ZottaError(f"purity needs at least {MIN_SAMPLES} images of either domain, not {n}")
    # A batch is of one domain: under dynamic quantization its samples share their ranges.
    batches = [*in_batches(source[:n]), *in_batches(drifted[:n])]
    domain = np.arange(2 * n) >= n
    values, clustering, started = [], 0.0, time.perf_counter()
    with Progress("clustering", len(info.layers)) as progress:
        for layer, tensors in zip(info.layers, by_layer(path, info, batches, threads), strict=True):
            ran = time.perf_counter()
            values.append(purity(at_positions(tensors, layer.kind), domain, seed))
            clustering += time.perf_counter() - ran
            progress.advance(note=layer.name)
    return Purities(tuple(values), (time.perf_counter() - started - clustering, clustering))


def purity(chunks: Iterable[Floats], drifted: Mask, seed: int) -> float:
    """P_l, the mean of P_{l,m} over the positions of a layer; `chunks` are [position, sample, C].

    One thread: on problems this small, OpenMP's waiting threads cost more than they save, and on
    a busy machine many times more.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    rng = np.random.default_rng(seed)
    with threadpool_limits(1):
        each = [position_purity(two_means(vectors, rng), drifted) for vectors in chunks]
    return float(np.concatenate(each).mean())


def position_purity(clusters: Mask, drifted: Mask) -> NDArray[np.float64]:
    """P_{l,m} = 1/2N sum_q max_c |C_q and Y_c|, from the cluster of each [position, sample]."""
    shared = [
        [(members & domain).sum(axis=1) for domain in (drifted, ~drifted)]
        for members in (clusters, ~clusters)
    ]  # [cluster, domain, position]
    best: NDArray[np.float64] = np.max(shared, axis=1).sum(axis=0) / len(drifted)
    return best


def two_means(vectors: Floats, rng: np.random.Generator) -> Mask:
    """The cluster, of two, of each sample at each position; `vectors` are [position, sample, C].

    One call of scikit-learn clusters all positions given: one more coordinate for each of them
    sets it so far apart that no sample is ever nearer to another position's centre. That is
    exactly 2-means at every position, without paying scikit-learn's overhead for each.
    """
    from sklearn import config_context
    from sklearn.cluster import KMeans

    x = _centred(vectors)
    centres = _starts(x, rng)  # [position, 2, C]
    clusters = np.zeros(x.shape[:2], bool)
    varied = (centres[:, 0] != centres[:, 1]).any(axis=1)  # the others have nothing to cluster
    if varied.any():
        count = int(varied.sum())
        init, points = _set_apart(centres[varied]), _set_apart(x[varied])
        with config_context(assume_finite=True, skip_parameter_validation=True):
            means = KMeans(2 * count, init=init, n_init=1, tol=0).fit(points)
        clusters[varied] = means.labels_.reshape(count, -1) % 2
    return clusters


def _centred(vectors: Floats) -> Floats:
    """Every position with mean 0 and its furthest sample at 1; mere rounding counts as 0."""
    mean = vectors.mean(axis=1, keepdims=True)
    if not np.isfinite(mean).all():
        raise ZottaError("the model's features are not finite: export it again")
    x: Floats = vectors - mean
    reach = np.sqrt(np.square(x).sum(axis=2).max(axis=1))
    reach[reach <= 1e-6 * np.linalg.norm(mean[:, 0], axis=1)] = np.inf
    x /= reach[:, None, None]
    return x


def _set_apart(vectors: Floats) -> Floats:
    """[position, n, C] to [position * n, C + position]: each position on an axis of its own."""
    positions, n, _ = vectors.shape
    axes = np.repeat(APART * np.eye(positions, dtype=np.float32), n, axis=0)
    return np.hstack([vectors.reshape(positions * n, -1), axes])


def _starts(x: Floats, rng: np.random.Generator) -> Floats:
    """Two centres for each position: the best of several short clusterings, all done at once.

    `x` is [position, sample, C] with mean 0 over the samples. One good start comes as close to
    the optimum as ten of scikit-learn's own, which would be fitted one after the other.
    """
    samples = x.shape[1]
    pairs = rng.integers(samples, size=(2, len(x), STARTS, 1))
    # [position, start, C]
    first, second = (np.take_along_axis(x, drawn, axis=1) for drawn in pairs)
    for _ in range(STEPS):
        halfway = (np.square(first).sum(axis=2) - np.square(second).sum(axis=2)) / 2
        nearer = x @ (first - second).swapaxes(1, 2) > halfway[:, None]  # [position, sample, start]
        count = nearer.sum(axis=1)[..., None].clip(1, samples - 1).astype(np.float32)
        total = nearer.swapaxes(1, 2).astype(np.float32) @ x
        # The mean is 0, so the two clusters have opposite sums.
        first, second = total / count, -total / (samples - count)
    # The more scatter between the clusters, the less within them.
    between = (np.square(total) * (1 / count + 1 / (samples - count))).sum(axis=2)
    best = between.argmax(axis=1)[:, None, None]
    chosen = [np.take_along_axis(centre, best, axis=1) for centre in (first, second)]
    return np.concatenate(chosen, axis=1)
