"""Priming: the Jacobian by forward passes, how it is stored, and the step that it gives."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toy

from zotta_edge import ZottaError
from zotta_edge.__main__ import main
from zotta_edge.calibration import prime as priming
from zotta_edge.calibration.calibrate import Report, Settings, calibrate, store
from zotta_edge.calibration.jacobian import Jacobian, measure, orthogonal
from zotta_edge.calibration.prime import prime, thin
from zotta_edge.calibration.selection import Choice
from zotta_edge.format import Floats, Prime, from_metadata, to_metadata
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.arrays import load_images
from zotta_edge.runtime.methods.primed.gauss_newton import GaussNewton
from zotta_edge.runtime.watch.statistics import pooled
from zotta_edge.runtime.zeroth.parameters import Parameters


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.open(toy.build(tmp_path_factory.mktemp("toy") / "toy.onnx"), threads=1)


@pytest.fixture
def digits() -> np.ndarray:
    return load_images(embedded.STREAM).images


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(embedded.MODEL, tmp_path / "digits.onnx"))


@pytest.fixture
def calibrated(model: Path, digits: np.ndarray) -> Report:
    return calibrate(model, digits, settings=Settings(Choice(layers=(1,))))


def test_directions_are_orthogonal_and_of_size_one() -> None:
    q = orthogonal(50, np.random.default_rng(0))
    np.testing.assert_allclose(q @ q.T, 50 * np.eye(50), atol=1e-3)
    assert np.abs(q).max() <= np.sqrt(2) + 1e-6


def test_one_images_jacobian_is_that_of_single_coordinates(engine: Engine) -> None:
    image = toy.images(1)
    found = measure(engine, [np.repeat(image, 8, axis=0)], 1e-2, seed=0)
    np.testing.assert_allclose(found.mean, _by_coordinates(engine, image), atol=2e-3)


def test_a_mean_over_images_is_approached(engine: Engine) -> None:
    """Each direction sees another image: the error is spread over all of J, and averages out."""
    images = toy.images(64)
    exact = np.mean([_by_coordinates(engine, image[None]) for image in images], axis=0)
    errors = [
        np.linalg.norm(measure(engine, [images] * sweeps, 1e-2, seed=0).mean - exact)
        for sweeps in (1, 8)
    ]
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.3 * np.linalg.norm(exact)


def test_measuring_goes_on_from_what_is_done(engine: Engine) -> None:
    groups = [toy.images(16, seed) for seed in range(3)]
    whole = measure(engine, groups, 0.02, seed=1)
    kept: list[Jacobian] = []
    measure(engine, groups[:2], 0.02, seed=1, finished=kept.append)
    assert [one.sweeps for one in kept] == [1, 2]
    np.testing.assert_array_equal(measure(engine, groups, 0.02, 1, start=kept[0]).sum, whole.sum)


def test_thin_factors_keep_a_low_rank_matrix() -> None:
    rng = np.random.default_rng(0)
    low = (rng.normal(size=(40, 3)) @ rng.normal(size=(3, 30))).astype(np.float32)
    left, right, energy = thin(low, 3)
    np.testing.assert_allclose(left @ right.T, low, atol=1e-4)
    assert energy == pytest.approx(1, abs=1e-4)


def test_thin_factors_are_nearly_the_best_of_their_rank() -> None:
    """On a spectrum that falls as slowly as a measured J's."""
    noise = np.random.default_rng(0).normal(size=(120, 80)) * np.arange(1, 81) ** -0.5
    left, right, energy = thin(noise.astype(np.float32), 20)
    values = np.square(np.linalg.svd(noise, compute_uv=False))
    assert energy == pytest.approx(values[:20].sum() / values.sum(), rel=0.01)
    lost = np.square(noise - left @ right.T).sum() / values.sum()
    assert lost == pytest.approx(1 - energy, rel=0.01)


def test_the_step_is_the_dense_formula() -> None:
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=size).astype(np.float32) for size in ((40, 5), (30, 5))]
    newton = GaussNewton(_prime(*factors), damping=2.0)
    jacobian, shift = (factors[0] @ factors[1].T).astype(np.float64), rng.normal(size=40)
    square = jacobian.T @ jacobian
    damped = square + 2.0 * np.trace(square) / 30 * np.eye(30)
    expected = -np.linalg.solve(damped, jacobian.T @ shift)
    np.testing.assert_allclose(newton.step(shift), expected, rtol=1e-3, atol=1e-5)
    move = newton.step(shift)
    np.testing.assert_allclose(newton.effect(move), jacobian @ move, rtol=1e-3, atol=1e-4)


def test_a_prime_survives_the_file(model: Path) -> None:
    info = read_info(model)
    assert info.prime is not None
    again = from_metadata(to_metadata(info)).prime
    assert again is not None
    np.testing.assert_allclose(again.features, info.prime.features, rtol=1e-6)
    np.testing.assert_allclose(again.shifts, info.prime.shifts, rtol=1e-6)
    assert (again.layers, again.images) == (info.prime.layers, info.prime.images)


@pytest.mark.parametrize("layers", ["[99]", "[-1]", "[0]", '"x"', "null"])
def test_a_damaged_prime_is_refused(model: Path, layers: str) -> None:
    metadata = to_metadata(read_info(model))
    metadata["zotta.prime"] = metadata["zotta.prime"].replace("[1,2,3]", layers)
    assert layers in metadata["zotta.prime"]
    with pytest.raises(ZottaError, match="is damaged"):
        from_metadata(metadata)


def test_a_dry_run_primes_nothing(model: Path, digits: np.ndarray, tmp_path: Path) -> None:
    source = tmp_path / "source.npy"
    np.save(source, digits[:64].repeat(4, axis=1).repeat(4, axis=2))
    before = model.read_bytes()
    command = ["calibrate", str(model), "--source", str(source), "--layers", "1", "--prime"]
    assert main([*command, "--dry-run"]) == 0
    assert model.read_bytes() == before


def test_a_new_calibration_drops_the_old_prime(calibrated: Report) -> None:
    store(calibrated)
    assert read_info(calibrated.model).prime is None


def test_calibrate_primes_and_says_so(
    model: Path, digits: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source.npy"
    np.save(source, digits[:64].repeat(4, axis=1).repeat(4, axis=2))  # 32 x 32
    command = ["calibrate", str(model), "--source", str(source), "--layers", "1-2"]
    assert main([*command, "--prime", "-o", str(tmp_path / "primed.onnx")]) == 0
    assert "primed on" in capsys.readouterr().out
    info = read_info(tmp_path / "primed.onnx")
    assert info.prime is not None
    assert info.prime.layers == (1, 2)
    assert main([*command, "-o", str(tmp_path / "plain.onnx")]) == 0
    sizes = [(tmp_path / f"{name}.onnx").stat().st_size for name in ("primed", "plain")]
    assert info.signatures is not None
    assert info.moments is not None
    assert info.moments.gains.keys() == {"primed", "moments"}
    assert sizes[0] <= 1.22 * sizes[1]  # J and signatures at most 18 %, and the moments
    assert not list(tmp_path.glob(".*priming*"))


def test_an_interrupted_priming_goes_on(
    calibrated: Report, digits: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, digits = Settings(samples=128), digits[:32]
    whole = prime(calibrated, digits, settings).info.prime
    real, calls = priming.measure, []

    def stopped(*args: object, **kwargs: object) -> object:
        def finished(so_far: Jacobian) -> None:
            kwargs["finished"](so_far)  # type: ignore[operator]
            raise KeyboardInterrupt

        return real(*args, **(kwargs | {"finished": finished}))  # type: ignore[arg-type]

    monkeypatch.setattr(priming, "measure", stopped)
    with pytest.raises(KeyboardInterrupt, match="1 of 2 sweeps are kept in .*the same command"):
        prime(calibrated, digits, settings)
    assert len(list(calibrated.model.parent.glob(".*priming.npz"))) == 1

    def resumed(*args: object, **kwargs: object) -> object:
        calls.append(kwargs["start"])
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(priming, "measure", resumed)
    again = prime(calibrated, digits, settings).info.prime
    assert calls[0].sweeps == 1
    assert whole is not None
    assert again is not None
    np.testing.assert_array_equal(again.features, whole.features)
    assert not list(calibrated.model.parent.glob(".*priming.npz"))


def test_layers_without_affines_cannot_be_primed(calibrated: Report, digits: np.ndarray) -> None:
    info = calibrated.info
    bare = replace(info, layers=tuple(replace(layer, norms=()) for layer in info.layers))
    with pytest.raises(ZottaError, match="no affines"):
        prime(replace(calibrated, info=bare), digits, Settings())


def _by_coordinates(engine: Engine, image: Floats, step: float = 1e-2) -> Floats:
    parameters = Parameters(engine.info, engine.chosen)
    steps = step * np.eye(len(parameters), dtype=np.float32)[parameters.shifts]
    stem = engine.stem(np.repeat(image, len(steps), axis=0))
    sides = [
        pooled(
            engine.cone(stem, parameters.affines(parameters.source + sign * steps)),
            min(engine.chosen),
        )
        for sign in (1, -1)
    ]
    jacobian: Floats = ((sides[0] - sides[1]) / (2 * step)).T
    return jacobian


def _prime(features: Floats, shifts: Floats) -> Prime:
    return Prime(features, shifts, (0,), 1, 0.03, 1.0, 1.0, 0.0)
