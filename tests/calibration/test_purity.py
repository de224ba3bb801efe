"""Clustering purity against brute force: every partition, and Eq. 3 with sets."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from zotta_edge.calibration.features import at_positions
from zotta_edge.calibration.purity import position_purity, purity, two_means
from zotta_edge.errors import ZottaError


def eq3(clusters: NDArray[np.bool_], drifted: NDArray[np.bool_]) -> float:
    """P_{l,m} of one position, transcribed."""
    members = [{i for i, c in enumerate(clusters) if c == q} for q in (False, True)]
    domains = [{i for i, d in enumerate(drifted) if d == c} for c in (False, True)]
    return sum(max(len(c_q & y_c) for y_c in domains) for c_q in members) / len(drifted)


def inertia(x: NDArray[np.float32], clusters: NDArray[np.bool_]) -> float:
    return sum(
        float(np.square(x[side] - x[side].mean(axis=0)).sum())
        for side in (clusters, ~clusters)
        if side.any()
    )


def best_partition(x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """The optimum of 2-means: the best of all 2^(n-1) partitions."""
    partitions = np.array(list(product((False, True), repeat=len(x) - 1)))
    partitions = np.hstack([np.zeros((len(partitions), 1), bool), partitions])
    return partitions[np.argmin([inertia(x, clusters) for clusters in partitions])]


def clouds(positions: int, samples: int, channels: int, apart: float) -> NDArray[np.float32]:
    """[position, 2N, C]: the second half of the samples lies `apart` from the first."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((positions, samples, channels)).astype(np.float32)
    x[:, samples // 2 :, 0] += apart
    return x


def test_purity_of_given_clusters_is_equation_3() -> None:
    rng = np.random.default_rng(1)
    clusters = rng.random((200, 30)) < rng.random((200, 1))
    drifted = np.arange(30) >= 15
    expected = [eq3(row, drifted) for row in clusters]
    np.testing.assert_allclose(position_purity(clusters, drifted), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("apart", [0.0, 2.0, 6.0])
def test_two_means_finds_the_best_of_all_partitions(apart: float) -> None:
    x = clouds(24, 10, 5, apart)
    drifted = np.arange(10) >= 5
    found = two_means(x, np.random.default_rng(0))
    best = np.stack([best_partition(position) for position in x])
    ratios = [inertia(p, f) / inertia(p, b) for p, f, b in zip(x, found, best, strict=True)]
    assert np.median(ratios) == pytest.approx(1, abs=1e-5)
    assert np.mean(ratios) < 1.01
    if apart == 6.0:  # clear clusters leave no second optimum
        np.testing.assert_array_equal(
            position_purity(found, drifted), [eq3(b, drifted) for b in best]
        )


def test_positions_clustered_together_are_those_clustered_alone() -> None:
    x = clouds(8, 40, 16, 3.0) * np.logspace(-2, 2, 8, dtype=np.float32)[:, None, None]
    together = two_means(x, np.random.default_rng(0))
    for vectors, clusters in zip(x, together, strict=True):
        centres = np.stack([vectors[~clusters].mean(axis=0), vectors[clusters].mean(axis=0)])
        alone = KMeans(2, init=centres, n_init=1, tol=0).fit(vectors)
        assert alone.n_iter_ <= 2  # a fixed point of Lloyd's algorithm
        np.testing.assert_array_equal(alone.labels_ == 1, clusters)


def test_starts_come_as_close_as_ten_of_scikit_learns() -> None:
    x = clouds(48, 128, 96, 2.0)
    found = two_means(x, np.random.default_rng(0))
    ours = [inertia(vectors, clusters) for vectors, clusters in zip(x, found, strict=True)]
    theirs = [KMeans(2, n_init=10, random_state=0).fit(vectors).inertia_ for vectors in x]
    assert np.mean(np.array(ours) / theirs) < 1.002


def test_domains_far_apart_are_pure_and_equal_ones_are_not() -> None:
    drifted = np.arange(64) >= 32
    assert purity([clouds(8, 64, 16, 50.0)], drifted, seed=0) == 1
    assert purity([clouds(40, 64, 16, 0.0)], drifted, seed=0) < 0.6


def test_vectors_that_do_not_vary_have_the_least_purity() -> None:
    x = clouds(4, 20, 6, 50.0)
    x[1] = 3.0
    each = position_purity(two_means(x, np.random.default_rng(0)), np.arange(20) >= 10)
    assert each.tolist() == [1, 0.5, 1, 1]


def test_rounding_is_not_clustered() -> None:
    x = np.full((1, 20, 6), 0.1, np.float32) + np.zeros((20, 6), np.float32)
    x[0, 3:9] = np.nextafter(x[0, 3:9], np.float32(1))
    assert not two_means(x, np.random.default_rng(0)).any()


def test_features_that_are_not_finite_are_refused() -> None:
    x = clouds(2, 20, 6, 1.0)
    x[1, 2, 3] = np.inf
    with pytest.raises(ZottaError, match="not finite"):
        two_means(x, np.random.default_rng(0))


def test_a_seed_decides_everything() -> None:
    x, drifted = clouds(16, 64, 24, 1.0), np.arange(64) >= 32
    assert purity([x], drifted, seed=3) == purity([x], drifted, seed=3)


def test_all_tokens_count_and_maps_are_seen_on_a_grid() -> None:
    tokens = np.random.default_rng(0).random((6, 19, 4), np.float32)
    seen = np.concatenate(list(at_positions([tokens[:2], tokens[2:]], "tokens")))
    np.testing.assert_array_equal(seen, tokens.swapaxes(0, 1))

    image = np.arange(32 * 24, dtype=np.float32).reshape(1, 1, 32, 24).repeat(2, axis=0)
    grid = np.concatenate(list(at_positions([image], "map")))
    rows, columns = np.divmod(grid[:, 0, 0], 24)
    assert sorted(set(rows)) == [2, 6, 10, 14, 18, 22, 26, 30]
    assert sorted(set(columns)) == [1, 4, 7, 10, 13, 16, 19, 22]
    last = np.concatenate(list(at_positions([np.moveaxis(image, 1, -1)], "nhwc")))
    np.testing.assert_array_equal(last, grid)

    small = np.random.default_rng(0).random((3, 5, 7, 7), np.float32)
    assert sum(len(chunk) for chunk in at_positions([small], "map")) == 49
    vector = np.random.default_rng(0).random((3, 5), np.float32)
    np.testing.assert_array_equal(next(at_positions([vector], "vector"))[0], vector)
