"""The drift score at every batch size, and the gate that it opens."""

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.events import Event, Events, PhaseChanged
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.drift import Drift, RunningMean
from zotta_edge.runtime.watch.gate import Gate
from zotta_edge.runtime.watch.statistics import Source

Floats = NDArray[np.float32]
CHANNELS = (24, 32)  # of the watched layers; one more is adapted
FACTORS = 6  # features of real networks vary in few directions only
SAMPLES = 64

rng = np.random.default_rng(5)
MIXING = rng.normal(size=(FACTORS, sum(CHANNELS)))


def features(count: int, seed: int, shift: float = 0.0) -> list[Floats]:
    """Correlated channels whose mean is moved by `shift` standard deviations."""
    factors = np.random.default_rng(seed).normal(size=(count, FACTORS))
    values = factors @ MIXING + shift * np.linalg.norm(MIXING, axis=0)
    return np.split(values.astype(np.float32), np.cumsum(CHANNELS)[:-1], axis=1)


@pytest.fixture
def source() -> Source:
    sample = np.concatenate(features(SAMPLES, seed=1000), axis=1)
    adapted = np.ones(8)
    return Source(
        np.concatenate([sample.mean(axis=0), adapted]),
        np.concatenate([sample.std(axis=0), adapted]),
        SAMPLES,
        np.cumsum([*CHANNELS, 8]),
    )


def drift_of(source: Source) -> Drift:
    return Drift(source, (2,), Settings())


def watch(drift: Drift, batch: int, count: int, seed: int, shift: float = 0.0) -> list[float]:
    stream = features(count, seed, shift)
    seen = []
    for start in range(0, count, batch):
        drift.observe([layer[start : start + batch] for layer in stream])
        seen.append(drift.significance)
    return seen


@pytest.mark.parametrize("batch", [64, 16, 4, 1])
def test_a_stream_like_the_source_is_no_drift(source: Source, batch: int) -> None:
    highest = []
    for seed in range(10):
        highest.append(max(watch(drift_of(source), batch, 1024, seed)))
    assert max(highest) < Settings().drift_threshold


@pytest.mark.parametrize("batch", [64, 16, 4, 1])
def test_a_moved_stream_is_seen_within_one_window(source: Source, batch: int) -> None:
    drift = drift_of(source)
    watch(drift, batch, 512, seed=1)
    assert max(watch(drift, batch, 64, seed=2, shift=1.0)) > Settings().drift_threshold
    watch(drift, batch, 512, seed=3, shift=1.0)
    assert drift.score == pytest.approx(1.0, abs=0.25)  # in standard deviations


@pytest.mark.parametrize("batch", [64, 16, 4, 1])
def test_the_stream_may_come_back(source: Source, batch: int) -> None:
    drift = drift_of(source)
    watch(drift, batch, 256, seed=1, shift=1.0)
    assert min(watch(drift, batch, 512, seed=2)) < Settings().drift_threshold / 2


def test_few_samples_prove_nothing(source: Source) -> None:
    drift = drift_of(source)
    assert watch(drift, 1, 7, seed=1, shift=50.0) == [0.0] * 7


def test_only_layers_theta_cannot_reach_are_watched(source: Source) -> None:
    assert Drift(source, (1, 2), Settings()).untouched_layers == 1
    everything = Drift(source, (0,), Settings())
    assert everything.untouched_layers == 0
    everything.observe([*features(16, seed=1), np.ones((16, 8), np.float32)])
    assert everything.significance > 0


@pytest.mark.parametrize("batch", [1, 7, 64, 100])
def test_running_mean_knows_its_own_noise(batch: int) -> None:
    """Its variance over many streams of unit variance is what it says."""
    means, said = [], 0.0
    for seed in range(400):
        running = RunningMean(64, 1)
        stream = np.random.default_rng(seed).normal(size=(210, 1)).astype(np.float32)
        for start in range(0, 210 - batch + 1, batch):
            running.add(stream[start : start + batch])
        means.append(running.mean[0])
        said = running.variance
    assert np.var(means) == pytest.approx(said, rel=0.3)


def test_gate_opens_on_drift_and_closes_when_the_stream_returns(source: Source) -> None:
    drift = drift_of(source)
    gate = Gate(drift, Settings(), Events())
    phases = []
    for seed, shift in enumerate([0, 0, 1, 1, 0, 0]):
        watch(drift, 64, 64, seed, shift)
        returned = gate.update()
        phases.append((gate.phase, returned))
    assert phases == [
        ("watching", False),
        ("watching", False),
        ("adapting", False),
        ("adapting", False),
        ("watching", True),
        ("watching", False),
    ]


def test_gate_closes_when_adapting_no_longer_pays_and_opens_on_a_change(source: Source) -> None:
    drift = drift_of(source)
    gate = Gate(drift, Settings(patience=128, worthwhile=0.01), Events())
    watch(drift, 64, 64, seed=1, shift=1.0)
    gate.update()
    for loss in (10.0, 10.0, 9.0, 9.0):  # two stretches, the second lower
        gate.record(loss, 64)
        assert gate.open
    gate.record(9.0, 64)
    gate.record(9.0, 64)
    assert gate.phase == "settled"
    watch(drift, 64, 128, seed=2, shift=1.0)
    assert gate.update() is False
    assert gate.phase == "settled"
    watch(drift, 64, 64, seed=3, shift=2.0)
    gate.update()
    assert gate.open


def test_always_keeps_the_gate_open(source: Source) -> None:
    gate = Gate(drift_of(source), Settings(always=True, patience=1), Events())
    for _ in range(5):
        assert not gate.update()  # nor does a stream like the source take back what was learned
        gate.record(1.0, 64)
        assert gate.open


def test_state_goes_round(source: Source) -> None:
    first, second = drift_of(source), drift_of(source)
    gates = Gate(first, Settings(), Events()), Gate(second, Settings(), Events())
    watch(first, 16, 80, seed=1, shift=1.0)
    gates[0].update()
    gates[0].record(3.0, 16)
    second.restore(first.state())
    gates[1].restore(gates[0].state())
    for drift, gate in zip((first, second), gates, strict=True):
        watch(drift, 16, 80, seed=2, shift=2.0)
        gate.update()
        gate.record(2.0, 16)
    assert first.significance == second.significance
    assert first.change == second.change
    assert gates[0].phase == gates[1].phase
    for name, array in gates[0].state().items():
        np.testing.assert_array_equal(array, gates[1].state()[name])


def test_a_phase_is_reported_with_its_reason(source: Source) -> None:
    drift, events, received = drift_of(source), Events(), list[Event]()
    events.subscribe(received.append)
    gate = Gate(drift, Settings(), events)
    watch(drift, 64, 64, seed=1, shift=1.0)
    gate.update()
    (event,) = received
    assert isinstance(event, PhaseChanged)
    assert event.reason == f"watching -> adapting: drift {drift.score:.2f}"
