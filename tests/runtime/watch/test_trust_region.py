"""How far the trust region lets an update go."""

import numpy as np
import pytest

from zotta_edge.format import Floats
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.guard import GuardCounts
from zotta_edge.runtime.watch.trust_region import Distance, TrustRegion
from zotta_edge.runtime.zeroth.estimator import estimator_of

SOURCE = np.array([3.0, 4.0], np.float32)  # of norm 5


class Region:
    """A trust region with all that it is made of."""

    def __init__(self, source: Floats = SOURCE, **settings: object) -> None:
        chosen, events = Settings(**settings), Events()  # type: ignore[arg-type]
        self.counts = GuardCounts(events)
        self.distance = Distance(source, chosen, events)
        cosine = estimator_of(chosen).cosine(len(source), chosen.trusted_batch)
        self.region = TrustRegion(self.distance, cosine, chosen)
        self.bounded = self.region.bounded


def test_a_long_step_is_shortened() -> None:
    region = Region(max_step=0.1, max_distance=10.0)
    moved = region.bounded(SOURCE, SOURCE + np.array([5, 0], np.float32), 1)
    np.testing.assert_allclose(moved, [3.5, 4.0], rtol=1e-6)
    assert region.counts.to_dict()["shortened"] == 1
    short = SOURCE + np.array([0.1, 0], np.float32)
    assert region.bounded(SOURCE, short, 1) is short


def test_the_longest_step_grows_with_what_stands_behind_it() -> None:
    source = np.ones(500, np.float32)
    lengths = {
        (pairs, batch): float(np.linalg.norm(moved - source))
        for pairs in (5, 20)
        for batch in (1, 16)
        for moved in [Region(source, pairs=pairs).bounded(source, source + 10, batch)]
    }
    assert lengths[20, 1] == pytest.approx(2 * lengths[5, 1], rel=1e-4)
    assert lengths[5, 16] == pytest.approx(4 * lengths[5, 1], rel=1e-4)


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_per_sample_estimates_are_trusted_further(batch: int) -> None:
    """By as much at every batch size: 64 updates of one sample add up to one of 64."""
    source = np.ones(500, np.float32)

    def reached(estimator: str, **limits: float) -> float:
        region = Region(source, estimator=estimator, pairs=1, **limits)
        return region.distance(region.bounded(source, source + 10, batch))

    for limits in ({"max_step": 0.1, "max_distance": 99.0}, {"max_step": 9.0}):
        shared, own = (reached(kind, **limits) for kind in ("shared", "per-sample"))
        assert own == pytest.approx(4 * shared, rel=1e-4)


def test_the_distance_from_the_source_is_bounded() -> None:
    region = Region(max_step=10.0, max_distance=0.2)
    moved = region.bounded(SOURCE, SOURCE + np.array([0, 3], np.float32), 1)
    assert region.distance(moved) == pytest.approx(0.2)
    np.testing.assert_allclose(moved, [3.0, 5.0], rtol=1e-6)
    assert region.counts.to_dict()["bounded"] == 1


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    moved = Region().bounded(SOURCE, np.array([np.nan, 1], np.float32), 1)
    np.testing.assert_array_equal(moved, SOURCE)


def test_switched_off_it_lets_everything_pass() -> None:
    far = SOURCE * 100
    assert Region(guard=False).bounded(SOURCE, far, 1) is far


def test_trust_goes_round() -> None:
    region, other = Region(max_distance=10.0), Region(max_distance=10.0)
    region.region.scale(0.25)
    other.region.restore(region.region.state())
    far = SOURCE * 3
    np.testing.assert_array_equal(region.bounded(SOURCE, far, 1), other.bounded(SOURCE, far, 1))


@pytest.mark.parametrize("size", [0.0, 1e-45])
def test_a_source_without_a_length_of_its_own(size: float) -> None:
    """A forged file ended the first update in a ZeroDivisionError."""
    region = Region(np.full(4, size, np.float32), max_distance=10.0)
    moved = region.bounded(np.zeros(4, np.float32), np.ones(4, np.float32), 1)
    assert np.isfinite(moved).all()
    assert np.isfinite(region.distance(np.ones(4, np.float32)))
