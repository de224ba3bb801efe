"""Streams: what arrives when, and the same every time."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.isotonic import isotonic_regression

from zotta_edge.bench.data.datasets import Numbers
from zotta_edge.bench.data.scenarios import SCENARIOS, Stream, batch_size, check_scenario
from zotta_edge.bench.data.scenarios import streams as streams_of
from zotta_edge.bench.report.gain import half_gain, monotone
from zotta_edge.errors import ZottaError

DOMAINS = ("fog", "snow", "contrast")
COUNT = 10


def labels(domain: str) -> Numbers:
    return np.random.default_rng(len(domain)).integers(0, 4, COUNT).astype(np.intp)


def streams(scenario: str, seed: int = 0) -> list[Stream]:
    return SCENARIOS[scenario](DOMAINS, labels, seed)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_seed_same_streams_and_every_image_once(scenario: str) -> None:
    first, second = streams(scenario), streams(scenario)
    for one, other in zip(first, second, strict=True):
        assert (one.name, one.domains) == (other.name, other.domains)
        np.testing.assert_array_equal(one.domain, other.domain)
        np.testing.assert_array_equal(one.row, other.row)
    seen = [(s.domains[d], int(row)) for s in first for d, row in zip(s.domain, s.row, strict=True)]
    domains = ("clean",) if scenario == "clean" else DOMAINS
    assert sorted(seen) == sorted((name, row) for name in domains for row in range(COUNT))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_batches_cover_the_stream_in_order(scenario: str) -> None:
    for stream in streams(scenario):
        parts = list(stream.batches(4))
        assert [i for part in parts for i in range(part.start, part.stop)] == list(
            range(len(stream))
        )
        assert all(part.stop - part.start <= 4 for part in parts)
        if not scenario.startswith("mixed"):
            assert all(len(set(stream.domain[part])) == 1 for part in parts)


def test_mixed_depends_on_the_seed_and_blends() -> None:
    (one,), (other,) = streams("mixed", 0), streams("mixed", 1)
    assert not np.array_equal(one.domain, other.domain)
    assert any(len(set(one.domain[part])) > 1 for part in one.batches(4))


def test_label_shift_brings_one_class_after_another() -> None:
    for stream in streams("label-shift"):
        classes = labels(stream.name)[stream.row]
        changes = sum(a != b for a, b in pairwise(classes))
        assert changes == len(set(classes)) - 1


def test_correlated_brings_one_class_after_another_in_each_domain() -> None:
    (stream,) = streams("correlated")
    for index, name in enumerate(stream.domains):
        classes = labels(name)[stream.row[stream.domain == index]]
        assert sum(a != b for a, b in pairwise(classes)) == len(set(classes)) - 1
    assert sorted(stream.domain) == stream.domain.tolist()


def test_mixed_correlated_sorts_what_is_mixed() -> None:
    (stream,) = streams("mixed-correlated")
    rows = zip(stream.domain, stream.row, strict=True)
    classes = [labels(stream.domains[domain])[row] for domain, row in rows]
    assert sum(a != b for a, b in pairwise(classes)) == len(set(classes)) - 1
    assert sum(a != b for a, b in pairwise(stream.domain)) > 2 * len(DOMAINS)


def test_gradual_comes_and_goes() -> None:
    (stream,) = streams("gradual")
    shown = stream.shown(5)
    visits = [shown[stream.domain[0]]]
    visits += [shown[b] for a, b in pairwise(stream.domain) if a != b]
    slope = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert visits == [(name, severity) for name in DOMAINS for severity in slope]
    (gentle,) = streams_of("gradual", DOMAINS, labels, 0, severity=2)
    assert set(gentle.severities) == {1, 2}


def test_a_toolkits_names_are_known() -> None:
    assert [check_scenario(name) for name in ("mixed_domains", "mixed_domains_correlated")] == [
        "mixed",
        "mixed-correlated",
    ]
    assert check_scenario("gradual") == "gradual"


def test_recurring_comes_back_with_other_images() -> None:
    (stream,) = streams("recurring")
    order = [stream.domains[d] for d in stream.domain]
    visits = [order[0], *(b for a, b in pairwise(order) if a != b)]
    assert visits == [*DOMAINS] * 3


def test_single_is_one_at_a_time() -> None:
    assert batch_size("single", 64) == 1
    assert batch_size("reset", 64) == 64


def test_unknown_scenario() -> None:
    with pytest.raises(ZottaError, match="no scenario is called resett: there are reset"):
        check_scenario("resett")


def test_half_gain_finds_the_step() -> None:
    """A gain of 0.3 that starts at image 200, in as much noise as 30 streams leave."""
    rng = np.random.default_rng(0)
    rise = np.where(np.arange(600) < 200, 0.0, 0.3)
    curves = [(rng.random(600) < rise).astype(float) - (rng.random(600) < 0.05) for _ in range(30)]
    found = half_gain(curves)
    assert found is not None
    assert 190 <= found <= 215


def test_no_half_gain_without_gain() -> None:
    rng = np.random.default_rng(0)
    noise = [rng.choice([-1.0, 0.0, 1.0], 500) for _ in range(10)]
    assert half_gain(noise) is None
    assert half_gain([np.full(100, -0.2)]) is None
    assert half_gain([]) is None


def test_monotone_is_the_closest_rising_curve() -> None:
    np.testing.assert_allclose(monotone(np.array([0.0, 3.0, 1.0, 5.0])), [0, 2, 2, 5])
    rng = np.random.default_rng(0)
    for curve in (rng.integers(-1, 2, 300) / 3, np.zeros(4), np.arange(5.0)[::-1]):
        np.testing.assert_allclose(monotone(curve), isotonic_regression(curve), atol=1e-12)
