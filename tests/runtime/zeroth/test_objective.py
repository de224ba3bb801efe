"""Eq. 5 against torch and by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.watch.statistics import Queue, Source, entropies, moments
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment

Floats = NDArray[np.float32]
CHANNELS = (6, 10, 3)


def source(seed: int = 0) -> Source:
    rng = np.random.default_rng(seed)
    total = sum(CHANNELS)
    ends = np.cumsum(CHANNELS)
    return Source(rng.normal(size=total), rng.uniform(0.5, 2, size=total), 64, ends)


def outputs(batch: int, seed: int = 1, spread: float = 3.0) -> Outputs:
    rng = np.random.default_rng(seed)
    logits = (spread * rng.normal(size=(batch, 7))).astype(np.float32)
    features = tuple(rng.normal(size=(batch, c)).astype(np.float32) for c in CHANNELS)
    return Outputs(logits, features, features[-1])


def objective(reduction: str = "mean", queue: int = 1) -> EntropyAndAlignment:
    return EntropyAndAlignment(source(), 1.0, 0.4, reduction, Queue(queue, sum(CHANNELS)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "whole"])
@pytest.mark.parametrize("batch", [2, 16, 64])
def test_equals_torch(reduction: str, batch: int) -> None:
    torch = pytest.importorskip("torch")
    given, reference = outputs(batch), source()
    log_p = torch.tensor(given.logits).log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum(1)
    expected = entropy.mean() if reduction == "mean" else entropy.sum()
    expected = expected.double()
    means, stds = (torch.tensor(part).split(CHANNELS) for part in (reference.mean, reference.std))
    for feature, mean, std in zip(given.features, means, stds, strict=True):
        v = torch.tensor(feature, dtype=torch.float64)
        expected = expected + 0.4 * (v.mean(0) - mean).square().sum()
        expected = expected + 0.4 * (v.std(0, correction=0) - std).square().sum()
    whole = expected.item() / (batch if reduction == "whole" else 1)
    assert objective(reduction)(given) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "whole"])
@pytest.mark.parametrize(("batch", "queued"), [(1, 0), (1, 2), (2, 1), (5, 3), (64, 3)])
def test_slopes_of_each_sample_equal_those_of_torch(
    reduction: str, batch: int, queued: int
) -> None:
    """dL/dv by autograd, of the batch's own samples only: those of the queue stay as they are."""
    torch = pytest.importorskip("torch")
    given, loss = outputs(batch), objective(reduction, queue=4)
    for seed in range(queued):
        loss.queue.push(outputs(1, seed=10 + seed))
    features, entropy = loss.queue.beside(given)
    v = torch.tensor(features, dtype=torch.float64, requires_grad=True)
    aligned = (v.mean(0) - torch.tensor(loss.source.mean)).square().sum()
    if len(features) > 1:
        aligned += (v.std(0, correction=0) - torch.tensor(loss.source.std)).square().sum()
    (0.4 / (len(features) if reduction == "whole" else 1) * aligned).backward()
    np.testing.assert_allclose(loss.feature_gradient(features), v.grad, rtol=1e-5, atol=1e-7)

    moved = outputs(batch, seed=2)
    ends = [Outputs(given.logits, one, given.embedding) for one in _around(given, moved, 1e-3)]
    change = np.concatenate(ends[0].features, axis=1) - np.concatenate(ends[1].features, axis=1)
    expected = np.einsum("id,id->i", v.grad.numpy()[-batch:], change)
    np.testing.assert_allclose(loss.differences(*ends), expected, rtol=1e-3, atol=1e-7)

    weight = 1.0 if reduction == "sum" else 1 / len(entropy)
    other = Outputs(moved.logits, given.features, given.embedding)
    expected = weight * (entropies(moved.logits) - entropies(given.logits))
    np.testing.assert_allclose(loss.differences(other, given), expected, rtol=1e-5, atol=1e-7)


def _around(given: Outputs, towards: Outputs, size: float) -> list[tuple[Floats, ...]]:
    """The features a little further along a direction, and a little less."""
    pairs = list(zip(given.features, towards.features, strict=True))
    return [tuple(v + np.float32(side) * u for v, u in pairs) for side in (size, -size)]


def test_what_the_samples_do_adds_up_to_what_the_batch_does() -> None:
    """The second order cancels between the two sides."""
    given, loss = outputs(16), objective()
    sides = _around(given, outputs(16, seed=2), 0.01)
    plus, minus = (Outputs(given.logits, side, given.embedding) for side in sides)
    total = loss(plus) - loss(minus)
    assert loss.differences(plus, minus).sum() == pytest.approx(total, rel=1e-3)


def test_a_channel_without_spread_has_a_slope() -> None:
    features = np.concatenate(outputs(4).features, axis=1)
    features[:, 0] = 2.0
    slope = objective().feature_gradient(features)
    np.testing.assert_allclose(slope[:, 0], 2 * 0.4 / 4 * (2.0 - source().mean[0]))
    assert np.isfinite(slope).all()


def test_a_single_sample_has_no_spread_to_align() -> None:
    given, reference = outputs(1), source()
    features = np.concatenate(given.features, axis=1)[0]
    expected = entropies(given.logits)[0] + 0.4 * np.square(features - reference.mean).sum()
    assert objective()(given) == pytest.approx(expected, rel=1e-5)


def test_entropy_of_huge_logits_is_finite() -> None:
    logits = np.array([[1e4, -1e4, 0], [0, 0, 0]], np.float32)
    np.testing.assert_allclose(entropies(logits), [0, np.log(3)], atol=1e-6)


def test_moments_use_one_over_n() -> None:
    mean, std = moments(np.array([[1.0], [3.0]], np.float32))
    assert (mean[0], std[0]) == (2.0, 1.0)


def test_queue_lends_a_single_sample_the_last_three() -> None:
    """The objective of a batch of one is that of the window of four it completes."""
    window = outputs(4)
    singles = [
        Outputs(
            window.logits[i : i + 1], tuple(f[i : i + 1] for f in window.features), window.embedding
        )
        for i in range(4)
    ]
    one_by_one = objective(queue=4)
    for single in singles[:3]:
        one_by_one.queue.push(single)
    assert one_by_one(singles[3]) == pytest.approx(objective()(window), rel=1e-6)
    assert one_by_one(window) == pytest.approx(objective()(window), rel=1e-6)  # large enough


def test_queue_keeps_only_what_it_may_lend() -> None:
    queue = Queue(4, sum(CHANNELS))
    for batch in (1, 64, 2, 1, 1):
        queue.push(outputs(batch))
    assert len(queue.features) == 3
    queue = Queue(1, sum(CHANNELS))
    queue.push(outputs(5))
    assert len(queue.features) == 0


def test_queue_state_goes_round() -> None:
    queue, other = Queue(4, sum(CHANNELS)), Queue(4, sum(CHANNELS))
    queue.push(outputs(2))
    shapes = {name: array.shape for name, array in other.state().items()}
    assert shapes == {name: array.shape for name, array in queue.state().items()}
    other.restore(queue.state())
    for mine, theirs in zip(queue.beside(outputs(1)), other.beside(outputs(1)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
