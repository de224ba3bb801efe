"""Eq. 2 on functions whose gradient is known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.engine import Outputs
from zotta_edge.runtime.estimator import SharedDirections

Floats = NDArray[np.float32]


class Quadratic:
    """f(theta) = theta^T A theta / 2 + b theta, carried to the objective as a logit."""

    batch = 1

    def __init__(self, dimensions: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(dimensions, dimensions)) / np.sqrt(dimensions)
        self.matrix, self.linear = root @ root.T, rng.normal(size=dimensions)
        self.calls = 0

    def __call__(self, theta: Floats) -> Outputs:
        self.calls += 1
        value = theta @ self.matrix @ theta / 2 + self.linear @ theta
        logits = np.array([[value]])
        return Outputs(logits, (), logits)

    def gradient(self, theta: Floats) -> NDArray[np.float64]:
        return self.matrix @ theta + self.linear


def value(outputs: Outputs) -> float:
    return float(outputs.logits[0, 0])


@pytest.mark.parametrize("directions", ["gaussian", "segmented-uniform"])
def test_unbiased_on_a_quadratic(directions: str) -> None:
    """The mean of many estimates is the gradient, to within four standard errors everywhere."""
    f, theta = Quadratic(12), np.linspace(-1, 1, 12, dtype=np.float32)
    rng = np.random.default_rng(1)
    estimator = SharedDirections(pairs=1, directions=directions)
    estimates = np.stack([estimator(f, theta, value, 0.01, rng).gradient for _ in range(20_000)])
    error = estimates.mean(axis=0) - f.gradient(theta)
    standard_error = estimates.std(axis=0) / np.sqrt(len(estimates))
    assert np.all(np.abs(error) < 4 * standard_error)
    assert np.linalg.norm(error) < 0.05 * np.linalg.norm(f.gradient(theta))


@pytest.mark.parametrize("pairs", [1, 5, 14])
def test_cosine_follows_the_square_root_of_k_over_d(pairs: int) -> None:
    """d cos^2 is chi-squared with k degrees of freedom: its mean is k, its variance 2 k."""
    dimensions, repeats = 2304, 60
    gradient = np.random.default_rng(0).normal(size=dimensions)

    class Linear:
        batch = 1

        def __call__(self, theta: Floats) -> Outputs:
            logits = np.array([[theta @ gradient]])
            return Outputs(logits, (), logits)

    rng = np.random.default_rng(pairs)
    theta = np.zeros(dimensions, np.float32)
    estimates = [
        SharedDirections(pairs)(Linear(), theta, value, 0.01, rng).gradient for _ in range(repeats)
    ]
    cosines = [g @ gradient / np.linalg.norm(g) / np.linalg.norm(gradient) for g in estimates]
    scaled = dimensions * np.square(cosines)
    assert abs(scaled.mean() - pairs) < 4 * np.sqrt(2 * pairs / repeats) + 0.02 * pairs
    assert all(cosine > 0 for cosine in cosines)


def test_costs_two_passes_a_pair_and_keeps_them() -> None:
    f, theta = Quadratic(6), np.ones(6, np.float32)
    estimate = SharedDirections(pairs=3)(f, theta, value, 0.01, np.random.default_rng(0))
    assert f.calls == len(estimate.losses) == len(estimate.outputs) == 6
    assert estimate.losses == tuple(value(outputs) for outputs in estimate.outputs)
    assert estimate.loss == pytest.approx(value(f(theta)), abs=0.01)  # O(c^2)
    assert estimate.gradient.dtype == np.float32


def test_directions_are_what_they_are_called() -> None:
    from zotta_edge.runtime.estimator import draw

    u, credit = draw("segmented-uniform", 10_000, np.random.default_rng(0))
    assert np.abs(u).min() >= 0.5
    assert np.abs(u).max() <= 1
    assert abs(np.sign(u).mean()) < 0.05
    np.testing.assert_allclose(u * credit, 1, rtol=1e-6)
    u, credit = draw("gaussian", 10_000, np.random.default_rng(0))
    assert credit is u
    assert abs(u.std() - 1) < 0.05


def test_same_seed_same_estimate() -> None:
    f, theta = Quadratic(6), np.ones(6, np.float32)
    first, second = (
        SharedDirections(2)(f, theta, value, 0.01, np.random.default_rng(3)).gradient
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
