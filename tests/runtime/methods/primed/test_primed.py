"""The primed method: moves back what drifted, and nothing else."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toy
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.__main__ import main
from zotta_edge.calibration.calibrate import Report, store
from zotta_edge.calibration.jacobian import measure
from zotta_edge.calibration.prime import thin
from zotta_edge.format import Floats, Prime
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import mirrored
from zotta_edge.runtime.watch.statistics import Source
from zotta_edge.runtime.zeroth.parameters import Parameters

Pixels, Labels = NDArray[np.uint8], NDArray[np.int64]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return primed(tmp_path_factory.mktemp("toy") / "toy.onnx")


def primed(path: Path, mirrored: float = 1.0, chosen: tuple[int, ...] = (1, 2)) -> Path:
    """The toy model, primed on its own source."""
    toy.build(path, chosen=chosen)
    engine = Engine.open(path, threads=1)
    jacobian = measure(engine, [toy.images(32, seed) for seed in range(4)], 0.02, seed=0).mean
    left, right, energy = thin(jacobian, 32)
    info, calibration = engine.info, engine.info.calibration
    assert calibration is not None
    prime = Prime(left, right, engine.chosen, 128, 0.02, energy, mirrored, 0.0)
    store(Report(path, replace(info, prime=prime), calibration, None, ()))  # type: ignore[arg-type]
    return path


def load(path: Path, filters: bool = False, **settings: object) -> AdaptiveModel:
    chosen = Settings(filters=filters, **settings)  # type: ignore[arg-type]
    return AdaptiveModel.load(path, chosen, "primed", threads=1)


def misaligned(model: AdaptiveModel, images: Floats) -> float:
    """|mu - mu_S|^2 over all layers, as the model is now."""
    calibration = model.info.calibration
    assert calibration is not None
    engine, theta = model._engine, model.arrays()["method.alignment.theta"]
    parameters = Parameters(engine.info, engine.chosen)
    outputs = engine.cone(engine.stem(images), parameters.affines(theta))
    mean = np.concatenate([feature.mean(axis=0) for feature in outputs.features])
    return float(np.square(mean - Source.of(calibration).mean).sum())


@pytest.mark.parametrize("batch", [64, 16, 4, 1])
def test_features_return_to_the_source(path: Path, batch: int) -> None:
    model, fresh = load(path), toy.images(256, seed=5, shift=0.5)
    before = misaligned(model, fresh)
    stream = toy.images(256, seed=6, shift=0.5)
    for start in range(0, len(stream), batch):
        model.predict(stream[start : start + batch])
    assert misaligned(model, fresh) < 0.75 * before


def test_a_stream_like_the_source_moves_next_to_nothing(path: Path) -> None:
    model, stream = load(path), toy.images(640, seed=3)
    for start in range(0, len(stream), 64):
        model.predict(stream[start : start + 64])
    assert model.status()["distance"] < 0.02


def test_one_pass_an_image_without_a_budget(path: Path) -> None:
    model, stream = load(path, budget=1.0), toy.images(256, shift=toy.SHIFT)
    for start in range(0, len(stream), 16):
        model.predict(stream[start : start + 16])
    assert model.passes / len(stream) == pytest.approx(1)


@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("budget", [1.05, 1.2, 2.0])
def test_passes_stay_within_the_budget(path: Path, budget: float, filters: bool) -> None:
    """But for what the last batch made up for, and the trial that a stream begins with."""
    model, stream = load(path, filters, budget=budget), toy.images(1600, shift=toy.SHIFT)
    for start in range(0, len(stream), 16):
        model.predict(stream[start : start + 16])
    over = 16 + 60 * filters
    assert 1 < model.passes / len(stream) <= budget + over / len(stream)


def test_the_first_drifted_batch_is_answered_again(path: Path) -> None:
    drifted = toy.images(64, seed=1, shift=toy.SHIFT)
    first, again = load(path, budget=1.0).predict(drifted), load(path).predict(drifted)
    assert again.adapted
    assert np.abs(first.logits - again.logits).max() > 0.01


def test_a_second_pass_answers_in_a_mirror(path: Path) -> None:
    """The mean of both ways is the same for both ways."""
    model, drifted = load(path, budget=2.0), toy.images(64, seed=1, shift=toy.SHIFT)
    turned = mirrored(drifted, model.info.preprocessing)
    model.predict(drifted)
    assert model.passes == 2 * len(drifted)
    both = [model.predict(images, adapt=False).logits for images in (drifted, turned)]
    np.testing.assert_allclose(both[0], both[1], atol=1e-5)
    plain = load(path, budget=1.0)
    plain.predict(drifted)
    once = [plain.predict(images, adapt=False).logits for images in (drifted, turned)]
    assert np.abs(once[0] - once[1]).max() > 0.01
    np.testing.assert_allclose(both[0] - both[0].mean(), _mean_of(once), atol=0.05)


def _mean_of(logits: list[Floats]) -> Floats:
    mean: Floats = np.mean(logits, axis=0)
    return mean - mean.mean()


def test_a_mirror_waits_for_the_first_trial_of_filters(path: Path) -> None:
    """The batch earns 64 passes, which the mirror alone would need; the trial comes first."""
    model = load(path, filters=True, budget=2.0)
    model.predict(toy.images(64, seed=1, shift=toy.SHIFT))
    assert model.passes > 64 + 12 * 4


def test_no_mirror_for_a_stream_like_the_source(path: Path) -> None:
    model = load(path, budget=2.0)
    model.predict(toy.images(64, seed=3))
    assert model.passes == 64


def test_what_is_read_beside_carries_the_drift_of_a_whole_update(path: Path) -> None:
    model = load(path)
    assert model.predict(toy.images(4), adapt=False).drift == 0.0
    learned = model.predict(toy.images(64, seed=1, shift=toy.SHIFT))
    assert (
        model.predict(toy.images(4), adapt=False).drift == learned.drift == model.status()["drift"]
    )


def test_no_mirror_for_a_model_that_minds(tmp_path: Path) -> None:
    model = load(primed(tmp_path / "toy.onnx", mirrored=0.4), budget=2.0)
    drifted = toy.images(64, seed=1, shift=toy.SHIFT)
    for _ in range(8):
        model.predict(drifted)
    assert model.passes < 1.5 * 8 * len(drifted)


def test_digits_mind_a_mirror() -> None:
    prime = read_info(embedded.MODEL).prime
    assert prime is not None
    assert prime.mirrored < 0.5


@pytest.mark.parametrize("batch", [64, 4, 1])
def test_every_change_of_the_stream_is_noticed(path: Path, batch: int) -> None:
    model, kinds = load(path), list[str]()
    model.events.subscribe(lambda event: kinds.append(event.kind))
    for part in range(4):
        stream = toy.images(256, seed=part, shift=toy.SHIFT * (-1) ** part)
        for start in range(0, len(stream), batch):
            model.predict(stream[start : start + batch])
    assert 4 <= kinds.count("changed") + kinds.count("collapse") <= 6


def test_a_move_is_no_change_of_the_stream(tmp_path: Path) -> None:
    """With the first layer among the chosen ones, what is watched moves with theta."""
    model = load(primed(tmp_path / "toy.onnx", chosen=(0, 1)))
    distances = []
    for seed in range(8):
        model.predict(toy.images(64, seed, shift=toy.SHIFT))
        distances.append(model.status()["distance"])
    assert min(distances) > 0.5 * max(distances)


def test_the_distance_is_bounded(path: Path) -> None:
    model = load(path, damping=1e-3)
    for seed in range(20):
        model.predict(toy.images(64, seed, shift=10))
    assert model.status()["distance"] <= 0.5 + 1e-5


def test_a_model_that_is_not_primed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ZottaError, match="calibrate MODEL --source DIR --prime"):
        load(toy.build(tmp_path / "toy.onnx"))


def test_other_layers_than_the_primed_ones_are_refused(path: Path) -> None:
    with pytest.raises(ZottaError, match=r"primed for layers \[1, 2\], not \[2\]"):
        load(path, layers=(2,))


def test_a_budget_below_one_pass_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapt", "--budget", "0.5"]) == 1
    assert "budget is 0.5: expected a number at least 1" in capsys.readouterr().err


def test_digits_in_fog_are_read_better(tmp_path: Path) -> None:
    model = Path(shutil.copy(embedded.MODEL, tmp_path))
    assert read_info(model).prime is not None
    source = embedded.corrupted_stream()
    labels = source.labels(None)
    samples = list(source)[:512]
    truth = np.array([labels[sample.name] for sample in samples])  # type: ignore[index]
    pixels = np.stack([sample.image for sample in samples])
    scores = {}
    for method in ("none", "primed"):
        adapting = AdaptiveModel.load(model, method=method, threads=1)
        found = [adapting.predict(pixels[start : start + 16]).labels for start in range(0, 512, 16)]
        scores[method] = float((np.concatenate(found) == truth).mean())
    assert scores["primed"] > scores["none"] + 0.05


def digits(change: Callable[[Floats], Floats], count: int = 512) -> tuple[Pixels, Labels]:
    """Digits of the stream, from 0 to 1 and changed, as uint8; and what they are."""
    with np.load(embedded.STREAM) as stream:
        pixels = change(stream["images"][:count].astype(np.float32) / 255)
        return np.rint(pixels.clip(0, 1) * 255).astype(np.uint8), stream["labels"][:count]


def hazy(pixels: Floats) -> Floats:
    return np.float32(0.2) * pixels + np.float32(0.5)


def read(model: AdaptiveModel, images: Pixels, batch: int = 16) -> Labels:
    parts = range(0, len(images), batch)
    return np.concatenate([model.predict(images[start : start + batch]).labels for start in parts])


@pytest.mark.parametrize("batch", [64, 16, 1])
def test_a_filter_makes_hazy_digits_legible(tmp_path: Path, batch: int) -> None:
    path = Path(shutil.copy(embedded.MODEL, tmp_path))
    images, truth = digits(hazy)
    right, filters = {}, {}
    for name, settings in (("with", {}), ("without", {"filters": False})):
        model = AdaptiveModel.load(path, Settings(**settings), threads=1)  # type: ignore[arg-type]
        right[name] = float((read(model, images, batch) == truth).mean())
        filters[name] = model.status()["filter"]
    assert filters == {"with": "contrast", "without": "none"}
    assert right["with"] > right["without"] + 0.1


def test_the_filter_goes_with_the_haze(tmp_path: Path) -> None:
    path = Path(shutil.copy(embedded.MODEL, tmp_path))
    model = AdaptiveModel.load(path, Settings(budget=1.5), threads=1)
    haze, _ = digits(hazy)
    read(model, haze)
    assert model.status()["filter"] == "contrast"
    clean, truth = digits(lambda pixels: pixels)
    found = read(model, clean)
    assert model.status()["filter"] == "none"
    plain = read(AdaptiveModel.load(path, method="none", threads=1), clean)
    assert (found == truth).mean() > (plain == truth).mean() - 0.01


def test_haze_that_comes_and_goes_stays_within_the_budget(tmp_path: Path) -> None:
    path = Path(shutil.copy(embedded.MODEL, tmp_path))
    model = AdaptiveModel.load(path, threads=1)
    haze, clean = (digits(change)[0] for change in (hazy, lambda pixels: pixels))
    for _ in range(8):
        read(model, haze, 64)
        read(model, clean, 64)
    assert 1.05 < model.passes / (16 * 512) <= 1.08 + 60 / (16 * 512)  # but for the last trial


def test_what_is_read_beside_goes_through_the_same_filter(tmp_path: Path) -> None:
    path = Path(shutil.copy(embedded.MODEL, tmp_path))
    model = AdaptiveModel.load(path, threads=1)
    haze, truth = digits(hazy)
    read(model, haze[:256])
    assert model.status()["filter"] == "contrast"
    beside = model.predict(haze[256:], adapt=False)
    assert not beside.adapted
    assert (beside.labels == truth[256:]).mean() > 0.8


def test_a_filter_survives_a_restart(tmp_path: Path) -> None:
    path = Path(shutil.copy(embedded.MODEL, tmp_path))
    model, again = (AdaptiveModel.load(path, threads=1) for _ in range(2))
    haze, _ = digits(hazy)
    read(model, haze[:256])
    model.save_state(tmp_path / "kept.state")
    again.load_state(tmp_path / "kept.state")
    assert again.status()["filter"] == "contrast"
    np.testing.assert_array_equal(
        model.predict(haze[256:320]).logits, again.predict(haze[256:320]).logits
    )
