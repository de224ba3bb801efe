"""The whole loop on a real, small model file: what it learns, costs, forgets and remembers."""

import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Event
from zotta_edge.runtime.state import file as states
from zotta_edge.runtime.watch.statistics import Source, entropies, moments, pooled
from zotta_edge.runtime.zeroth.parameters import Parameters

GENTLE = {"learning_rate": 1e-3, "entropy_weight": 0.1, "alignment_weight": 1.0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.build(tmp_path_factory.mktemp("toy") / "toy.onnx")


def load(path: Path, method: str = "zotta", **settings: Any) -> AdaptiveModel:
    return AdaptiveModel.load(path, Settings(**GENTLE | settings), method=method, threads=1)


def run(
    model: AdaptiveModel, count: int, batch: int = 16, seed: int = 0, shift: float = 0.0
) -> Any:
    stream = toy.images(count, seed, shift)
    results = [model.predict(stream[start : start + batch]) for start in range(0, count, batch)]
    return np.concatenate([result.logits for result in results])


def misalignment(model: AdaptiveModel, shift: float) -> float:
    """Eq. 5's second term over a large drifted sample, with the parameters as they are."""
    engine = model._engine
    parameters = Parameters(engine.info, engine.chosen)
    affines = parameters.affines(model.arrays()["method.theta"])
    outputs = engine.cone(engine.stem(toy.images(512, 77, shift)), affines)
    assert engine.info.calibration is not None
    source = Source.of(engine.info.calibration)
    mean, std = moments(pooled(outputs))
    return float(np.square(mean - source.mean).sum() + np.square(std - source.std).sum())


@pytest.mark.parametrize("batch", [64, 16, 4, 1])
@pytest.mark.parametrize("prediction", ["after", "mean", "best"])
@pytest.mark.parametrize("estimator", ["shared", "per-sample"])
def test_a_drifted_stream_is_brought_nearer_to_the_source(
    path: Path, batch: int, prediction: str, estimator: str
) -> None:
    model = load(path, prediction=prediction, estimator=estimator, pairs=2)
    before = misalignment(model, toy.SHIFT)
    run(model, 256, batch, shift=toy.SHIFT)
    assert misalignment(model, toy.SHIFT) < 0.97 * before
    assert model.status()["steps"] > 0


@pytest.mark.parametrize("batch", [64, 16, 4, 1])
def test_a_stream_like_the_source_costs_and_changes_nothing(path: Path, batch: int) -> None:
    model, plain = load(path), load(path, method="none")
    np.testing.assert_allclose(run(model, 512, batch), run(plain, 512, batch), rtol=1e-5, atol=1e-5)
    status = model.status()
    assert (status["steps"], status["phase"], status["distance"]) == (0, "watching", 0.0)
    assert model.passes == pytest.approx(plain.passes)


@pytest.mark.parametrize(("prediction", "cones"), [("after", 11), ("mean", 10), ("best", 10)])
@pytest.mark.parametrize("estimator", ["shared", "per-sample"])
def test_passes_are_counted_as_executed(
    path: Path, prediction: str, cones: int, estimator: str
) -> None:
    model = load(path, always=True, prediction=prediction, estimator=estimator)
    run(model, 64, 16)
    share = model._engine.cone_share
    assert 0.4 < share < 0.9
    assert model.passes / 64 == pytest.approx(1 - share + cones * share)


@pytest.mark.parametrize("settings", [{}, {"estimator": "per-sample", "pairs": 1}])
def test_predictions_without_a_further_pass(path: Path, settings: dict[str, Any]) -> None:
    """The mean of the perturbed passes is the old theta's answer up to O(c^2)."""
    batch = toy.images(16, shift=toy.SHIFT)
    plain = load(path, method="none").predict(batch)
    mean = load(path, always=True, prediction="mean", **settings).predict(batch)
    np.testing.assert_allclose(mean.logits, plain.logits, atol=0.02)
    assert np.abs(mean.logits - plain.logits).max() > 0
    assert mean.adapted


def test_result(path: Path) -> None:
    result = load(path).predict(toy.images(8))
    assert result.labels.shape == (8,)
    np.testing.assert_array_equal(result.labels, result.logits.argmax(axis=1))
    np.testing.assert_allclose(result.probabilities.sum(axis=1), 1, rtol=1e-5)
    assert result.drift is not None
    assert not result.adapted


def test_images_are_prepared(path: Path) -> None:
    model = load(path)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), np.uint8)
    prepared = ((pixels / 255 - 0.5) / 0.125).astype(np.float32)[:, None]
    by_pixels, by_floats = model.predict(pixels), model.predict(prepared)
    np.testing.assert_allclose(by_pixels.logits, by_floats.logits, atol=1e-4)


@pytest.mark.parametrize(
    "batch",
    [
        np.full((2, 1, 8, 8), np.nan, np.float32),
        np.full((2, 1, 8, 8), np.inf, np.float32),
        np.zeros((2, 1, 9, 8), np.float32),
        np.zeros((2, 3, 8, 8), np.float32),
        np.zeros((0, 1, 8, 8), np.float32),
        np.zeros((8, 8), np.float32),
    ],
)
def test_bad_batches_are_refused_and_leave_no_trace(path: Path, batch: Any) -> None:
    model, untouched = load(path, always=True), load(path, always=True)
    with pytest.raises(ZottaError):
        model.predict(batch)
    np.testing.assert_array_equal(run(model, 32), run(untouched, 32))


@pytest.mark.parametrize("estimator", ["shared", "per-sample"])
def test_same_seed_same_stream_same_state(path: Path, estimator: str) -> None:
    first, second, other = (
        load(path, always=True, seed=seed, estimator=estimator) for seed in (1, 1, 2)
    )
    streams = [run(model, 96, shift=toy.SHIFT) for model in (first, second, other)]
    np.testing.assert_array_equal(streams[0], streams[1])
    assert np.abs(streams[0] - streams[2]).max() > 0
    for name, array in first.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[name])


def test_reset_is_as_new(path: Path) -> None:
    model = load(path, always=True)
    run(model, 64, shift=toy.SHIFT)
    model.reset()
    batch = toy.images(16, seed=5)
    fresh = load(path, always=True)
    np.testing.assert_array_equal(
        model.predict(batch, adapt=False).logits, fresh.predict(batch, adapt=False).logits
    )
    np.testing.assert_array_equal(run(model, 64), run(fresh, 64))
    assert model.status()["resets"] == 1


def test_frozen_it_keeps_what_it_learned(path: Path) -> None:
    model = load(path, always=True)
    run(model, 64, shift=toy.SHIFT)
    model.freeze()
    before = model.arrays()
    first, second = run(model, 32, shift=toy.SHIFT), run(model, 32, shift=toy.SHIFT)
    np.testing.assert_array_equal(first, second)
    for name, array in before.items():
        np.testing.assert_array_equal(array, model.arrays()[name])
    assert np.abs(first - run(load(path, method="none"), 32, shift=toy.SHIFT)).max() > 1e-3
    model.unfreeze()
    assert model.predict(toy.images(16)).adapted


def test_episodic_answers_do_not_depend_on_what_came_before(path: Path) -> None:
    batch = toy.images(16, 3, toy.SHIFT)
    model = load(path, episodic=True)
    run(model, 64, seed=9)
    np.testing.assert_array_equal(
        model.predict(batch).logits, load(path, episodic=True).predict(batch).logits
    )


@pytest.mark.parametrize("batch", [16, 1])
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9, "learning_rate_decay": 0.6}, {"estimator": "per-sample"}],
)
def test_a_resumed_run_equals_the_uninterrupted_one(
    path: Path, tmp_path: Path, batch: int, settings: dict[str, Any]
) -> None:
    whole, first, second = (load(path, pairs=2, **settings) for _ in range(3))
    run(whole, 48, batch, 1, toy.SHIFT)
    run(first, 48, batch, 1, toy.SHIFT)
    first.save_state(tmp_path / "site.state")
    second.load_state(tmp_path / "site.state")
    np.testing.assert_array_equal(
        run(whole, 48, batch, 2, toy.SHIFT), run(second, 48, batch, 2, toy.SHIFT)
    )
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[name], err_msg=name)
    assert whole.status()["images"] == second.status()["images"] == 96


def test_a_state_that_does_not_fit_changes_nothing(path: Path, tmp_path: Path) -> None:
    other = toy.build(tmp_path / "other.onnx", chosen=(2, 3))
    foreign = load(other, always=True)
    run(foreign, 32)
    foreign.save_state(tmp_path / "foreign.state")
    (tmp_path / "damaged.state").write_bytes(b"not a state")
    model, fresh = load(path), load(path)
    for name in ("foreign.state", "damaged.state", "missing.state"):
        with pytest.raises(ZottaError):
            model.load_state(tmp_path / name)
    np.testing.assert_array_equal(run(model, 32), run(fresh, 32))


def test_layers_of_the_users_choice(path: Path) -> None:
    model = load(path, layers=(0,), always=True)  # no layer is left that theta cannot reach
    run(model, 64, shift=toy.SHIFT)
    assert model.status()["layers"] == [0]
    assert model.status()["parameters"] == 2 * toy.WIDTH
    gated = load(path, layers=(0,))
    run(gated, 64, shift=toy.SHIFT)
    assert gated.status()["steps"] > 0


def test_rollback_answers_with_the_old_parameters(path: Path) -> None:
    """A step that must raise the objective: huge, and allowed to be."""
    model = load(path, always=True, learning_rate=1e3, max_step=50.0, max_distance=100.0)
    plain = load(path, method="none")
    logits = run(model, 16, shift=toy.SHIFT)
    assert model.status()["guard"]["rollback"] == 1
    assert model.status()["distance"] == 0.0
    np.testing.assert_allclose(logits, run(plain, 16, shift=toy.SHIFT), atol=0.02)


def test_bound(path: Path) -> None:
    model = load(path, always=True, learning_rate=10.0, max_distance=0.02, tolerance=100.0)
    run(model, 64, shift=toy.SHIFT)
    status = model.status()
    assert status["guard"]["bounded"] > 0
    cosine = np.sqrt(model.settings.pairs / status["parameters"])
    assert status["distance"] == pytest.approx(0.02 * cosine, rel=1e-3)


def test_a_stream_that_returns_gets_the_source_back(path: Path) -> None:
    model = load(path)
    run(model, 128, 64, shift=toy.SHIFT)
    assert model.status()["distance"] > 0
    run(model, 128, 64, seed=4)
    status = model.status()
    assert (status["phase"], status["distance"]) == ("watching", 0.0)
    assert status["guard"]["returned"] == 1


def collapsed(engine: Engine) -> Any:
    """Parameters that answer every image with one class, and are sure of it."""
    parameters = Parameters(engine.info, engine.chosen)
    for seed in range(200):
        theta = parameters.source.copy()
        signs = np.random.default_rng(seed).choice([-1, 1], toy.WIDTH)
        theta[-toy.WIDTH :] += 40 * signs.astype(np.float32)  # the last shift drowns the image
        outputs = engine.cone(engine.stem(toy.images(64)), parameters.affines(theta))
        shares = np.bincount(outputs.logits.argmax(axis=1)) / 64
        if shares.max() > 0.9 and entropies(outputs.logits).mean() < 0.1:
            return theta
    raise AssertionError("no collapsed parameters found")


def test_collapse_returns_to_the_source(path: Path, tmp_path: Path) -> None:
    model = load(path, always=True, learning_rate=0.0, max_distance=100.0)
    run(model, 64, 64)
    state = model.arrays() | {"method.theta": collapsed(model._engine)}
    states.save(tmp_path / "collapsed.state", state, model.fingerprint, model.method)
    model.load_state(tmp_path / "collapsed.state")
    kinds = list[str]()
    model.events.subscribe(lambda event: kinds.append(event.kind))
    passes = model.passes
    run(model, 64, 64)
    status = model.status()
    assert status["guard"]["collapse"] == kinds.count("collapse") == 1
    assert status["distance"] == 0.0
    share = model._engine.cone_share
    assert (model.passes - passes) / 64 == pytest.approx(1 - share + 12 * share)  # 11 and one asked


def test_readers_never_see_half_an_update(path: Path) -> None:
    """Every answer of a reader is that of one of the parameters a single thread went through."""
    batch = toy.images(4, 6, toy.SHIFT)
    stream = toy.images(320, 1, toy.SHIFT)
    alone = load(path, always=True, pairs=1)
    allowed = {alone.predict(batch, adapt=False).logits.tobytes()}
    for start in range(0, 320, 16):
        alone.predict(stream[start : start + 16])
        allowed.add(alone.predict(batch, adapt=False).logits.tobytes())

    shared = load(path, always=True, pairs=1)
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(shared.predict(batch, adapt=False).logits.tobytes())

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, 320, 16):
        shared.predict(stream[start : start + 16])
    done.set()
    for reader in readers:
        reader.join()
    assert seen <= allowed


def test_writers_take_turns(path: Path) -> None:
    model = load(path, always=True, pairs=1)
    writers = [
        threading.Thread(target=run, args=(model, 160, 16, seed, toy.SHIFT)) for seed in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    status = model.status()
    assert (status["images"], status["batches"], status["steps"]) == (640, 40, 40)


def test_a_model_without_calibration_says_how_to_get_one(tmp_path: Path) -> None:
    raw = toy.build(tmp_path / "raw.onnx", calibrated=False)
    for settings in (Settings(), Settings(layers=(1,))):
        with pytest.raises(ZottaError, match="zotta-edge calibrate"):
            AdaptiveModel.load(raw, settings)
    assert AdaptiveModel.load(raw, method="none").predict(toy.images(2)).drift is None


def test_an_unknown_method_lists_the_known(path: Path) -> None:
    with pytest.raises(ZottaError, match="none, primed, moments, zotta"):
        AdaptiveModel.load(path, method="magic")


def test_a_warm_start_hashes_the_model_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(path)
    digest, hashed = hashlib.file_digest, list[str]()

    def counting(stream: Any, name: Any) -> Any:
        hashed.append(stream.name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    for method in ("zotta", "t3a", "none"):
        hashed.clear()
        model = load(path, method)
        assert [Path(name) for name in hashed].count(path) == 1
    assert model.fingerprint


def test_a_prepared_batch_is_not_checked_again(path: Path) -> None:
    """Nor converted, by which one can tell."""
    model, batch = load(path, "none"), toy.images(2)
    doubles = batch.astype(np.float64)
    expected = model.predict_prepared(batch).logits
    np.testing.assert_array_equal(model.predict(doubles).logits, expected)
    with pytest.raises(ZottaError, match="expected a float32 array, got float64"):
        model.predict_prepared(doubles)  # type: ignore[arg-type]


def test_listeners_receive_what_was_decided(path: Path) -> None:
    model, received = load(path), list[Event]()
    model.events.subscribe(received.append)
    run(model, 128, 64, shift=toy.SHIFT)
    run(model, 128, 64, seed=4)
    reasons = {event.kind: event.reason for event in received}
    assert reasons["phase"] == "adapting -> watching: the stream is like the source again"
    assert reasons["returned"].startswith("the stream is like the source again, drift ")
    model.events.unsubscribe(received.append)
    received.clear()
    run(model, 64, 64, shift=toy.SHIFT)
    assert received == []


def test_an_engine_may_be_shared(path: Path) -> None:
    engine = Engine.open(path, threads=1)
    adapting, plain = (
        AdaptiveModel(engine, Settings(always=True, **GENTLE)),
        AdaptiveModel(engine, method="none"),
    )
    before = run(plain, 32)
    run(adapting, 64, shift=toy.SHIFT)
    np.testing.assert_array_equal(before, run(plain, 32))
