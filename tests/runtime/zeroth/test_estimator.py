"""Eq. 2 on functions whose gradient is known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.watch.statistics import Queue, Source
from zotta_edge.runtime.zeroth.estimator import PerSample, SharedDirections
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment

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


class Samples:
    """Four samples, whose features are quadratic and whose logits are linear in theta."""

    batch, dimensions, channels, classes = 4, 10, 6, 5

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.linear = rng.normal(size=(self.batch, self.channels, self.dimensions))
        square = (self.batch, self.channels, self.dimensions, self.dimensions)
        self.square = rng.normal(size=square) / self.dimensions
        self.head = rng.normal(size=(self.batch, self.classes, self.dimensions))
        self.objective = EntropyAndAlignment(
            Source(np.zeros(self.channels), np.ones(self.channels), 64, np.array([self.channels])),
            entropy_weight=1.0,
            alignment_weight=0.4,
            reduction="mean",
            queue=Queue(1, self.channels),
        )

    def __call__(self, theta: Floats) -> Outputs:
        rows = np.broadcast_to(theta, (self.batch, self.dimensions))
        features = np.einsum("bcd,bd->bc", self.linear, rows)
        features += np.einsum("bcde,bd,be->bc", self.square, rows, rows)
        logits = np.einsum("bcd,bd->bc", self.head, rows)
        return Outputs(logits, (features,), features)

    def gradient(self, theta: Floats) -> NDArray[np.float64]:
        """Central differences of the objective itself, coordinate by coordinate."""
        steps = 1e-4 * np.eye(self.dimensions)
        losses = [self.objective(self(theta + e)) - self.objective(self(theta - e)) for e in steps]
        return np.array(losses) / 2e-4


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


@pytest.mark.parametrize("directions", ["gaussian", "segmented-uniform"])
def test_a_direction_for_every_sample_is_unbiased(directions: str) -> None:
    f, theta = Samples(), np.linspace(-1, 1, 10, dtype=np.float32)
    rng = np.random.default_rng(1)
    estimator = PerSample(pairs=1, directions=directions)
    estimates = np.stack(
        [estimator(f, theta, f.objective, 0.01, rng).gradient for _ in range(10_000)]
    )
    error = estimates.mean(axis=0) - f.gradient(theta)
    standard_error = estimates.std(axis=0) / np.sqrt(len(estimates))
    assert np.all(np.abs(error) < 4 * standard_error)
    assert np.linalg.norm(error) < 0.05 * np.linalg.norm(f.gradient(theta))


@pytest.mark.parametrize(("pairs", "batch"), [(1, 64), (2, 16), (1, 1)])
def test_a_direction_for_every_sample_is_worth_a_pair_each(pairs: int, batch: int) -> None:
    """Where all samples have the same gradient the cosine is sqrt(k batch / d)."""
    dimensions, repeats = 2304, 40
    gradient = np.random.default_rng(0).normal(size=dimensions)

    class Linear:
        def __init__(self) -> None:
            self.batch = batch

        def __call__(self, theta: Floats) -> Outputs:
            v = np.broadcast_to(theta, (batch, dimensions)) @ gradient[:, None]
            return Outputs(v, (v,), v)

    class Sum:
        def __call__(self, outputs: Outputs) -> float:
            return float(outputs.logits.sum())

        def differences(self, plus: Outputs, minus: Outputs) -> NDArray[np.float64]:
            return (plus.logits - minus.logits)[:, 0]

    rng, theta = np.random.default_rng(batch), np.zeros(dimensions, np.float32)
    estimator = PerSample(pairs)
    estimates = [estimator(Linear(), theta, Sum(), 0.01, rng).gradient for _ in range(repeats)]
    cosines = [g @ gradient / np.linalg.norm(g) / np.linalg.norm(gradient) for g in estimates]
    directions = pairs * batch  # d cos^2 / (1 - cos^2) is about chi-squared with as many degrees
    expected = dimensions * estimator.cosine(dimensions, batch) ** 2
    assert expected == pytest.approx(directions)
    scaled = dimensions * np.square(cosines)
    error = 4 * np.sqrt(2 * directions / repeats) + 0.05 * directions
    assert abs(scaled.mean() - expected) < error
    assert all(cosine > 0 for cosine in cosines)


def test_the_expected_cosine_of_shared_directions_knows_no_batch() -> None:
    assert SharedDirections(4).cosine(400, 64) == SharedDirections(4).cosine(400, 1) == 0.1
    assert PerSample(4).cosine(400, 1) == 0.1
    assert SharedDirections(9).cosine(4, 1) == PerSample(1).cosine(4, 9) == 1.0


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


def test_per_sample_losses_are_those_of_its_passes() -> None:
    f, theta = Samples(), np.ones(10, np.float32)
    estimate = PerSample(2)(f, theta, f.objective, 0.01, np.random.default_rng(0))
    assert len(estimate.losses) == len(estimate.outputs) == 4
    assert estimate.losses == tuple(f.objective(outputs) for outputs in estimate.outputs)
    assert estimate.loss == pytest.approx(f.objective(f(theta)), rel=0.01)  # O(c^2)
    assert estimate.gradient.dtype == np.float32
    again = PerSample(2)(f, theta, f.objective, 0.01, np.random.default_rng(0))
    np.testing.assert_array_equal(estimate.gradient, again.gradient)


def test_directions_are_what_they_are_called() -> None:
    from zotta_edge.runtime.zeroth.estimator import draw

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
