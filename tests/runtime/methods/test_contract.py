"""What every way to adapt must keep to, whatever it does in between."""

import contextlib
import gc
import inspect
import json
import re
import shutil
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from aligned import with_moments
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.__main__ import main
from zotta_edge.calibration.tokens import write_token_statistics
from zotta_edge.errors import NotFiniteError
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import ModelInfo
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.io.sources import Sample
from zotta_edge.runtime.job import adapt_stream
from zotta_edge.runtime.methods.registry import METHODS, find
from zotta_edge.runtime.state.file import save

Floats = NDArray[np.float32]
SIZES = (8, 1, 5, 8, 3, 1)  # of the batches of a stream
STATELESS = ("none", "lame", "bn_adapt", "alpha_bn", "leantta")
# BatchNorm's statistics are of no use to models without it; moments are measured in a test's copy,
# and signatures are primed alignment's.
BATCH_NORM = ("bn_adapt", "alpha_bn", "leantta", "unmix_tns")
MODELS = dict.fromkeys(BATCH_NORM, ("batch-norm",)) | {
    "moments": ("aligned",),
    "primed": ("vit", "resnet", "signed"),
}
CASES = [(method, model) for method in METHODS for model in MODELS.get(method, ("vit", "resnet"))]
cases = pytest.mark.parametrize(("method", "model"), CASES)


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory, residual_net: onnx.ModelProto, signed_digits: Path
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    source = folder / "source.onnx"
    onnx.save(residual_net, source)
    options = ExportOptions(precision="int8", mean=(0.5,), std=(0.5,))
    export_model(str(source), folder / "batch-norm.onnx", options)
    shutil.copy(embedded.MODEL, folder / "vit.onnx")
    shutil.copy(embedded.RESNET, folder / "resnet.onnx")
    shutil.copy(signed_digits, folder / "signed.onnx")
    digits = np.stack([sample.image for sample in embedded.corrupted_stream()][:64])
    for name in ("vit", "resnet"):
        info = read_info(folder / f"{name}.onnx")
        clean = as_batch(list(digits), info.preprocessing)
        write_token_statistics(folder / f"{name}.onnx", info, clean, folder / f"{name}.npz")
    with_moments(embedded.RESNET, folder / "aligned.onnx", embedded.digits(64))
    names = ("vit", "resnet", "batch-norm", "aligned", "signed")
    return {name: folder / f"{name}.onnx" for name in names}


@pytest.fixture(scope="module")
def digits() -> NDArray[np.uint8]:
    """64 digits in fog."""
    source = embedded.corrupted_stream()
    images = [sample.image for sample in source][:64]
    return np.stack(images)


@pytest.fixture
def case(method: str, model: str, models: dict[str, Path], digits: NDArray[np.uint8]) -> "Case":
    if method == "foa":
        pytest.importorskip("cma")
    return Case(method, models[model], digits)


class Case:
    def __init__(self, method: str, path: Path, digits: NDArray[np.uint8]) -> None:
        self.method, self.path = method, path
        pixels = _info(path).preprocessing
        noise = np.random.default_rng(0).integers(0, 256, (64, pixels.height, pixels.width, 3))
        self.pixels = list(digits if pixels.channels == 1 else noise.astype(np.uint8))
        self.images = as_batch(self.pixels, pixels)

    def load(self) -> AdaptiveModel:
        # FOA's 28 passes a batch would be most of the time, and change nothing that is tested.
        settings = Settings(always=True, pairs=1, learning_rate=1e-3, foa_candidates=5,
                            pea_statistics=str(self.path.with_suffix(".npz")))  # fmt: skip
        return AdaptiveModel.load(self.path, settings, self.method, threads=1)

    def batches(self) -> list[Floats]:
        return np.split(self.images[: sum(SIZES)], np.cumsum(SIZES)[:-1])

    def run(self, model: AdaptiveModel) -> list[Floats]:
        return [model.predict(batch).logits for batch in self.batches()]


@cache
def _info(path: Path) -> ModelInfo:
    return read_info(path)


def assert_same(ones: list[Floats], others: list[Floats]) -> None:
    """Bit for bit."""
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(one, other)


def snapshot(model: AdaptiveModel) -> dict[str, NDArray[Any]]:
    return {
        name: array.copy() for name, array in model.arrays().items() if name.startswith("method.")
    }


@cases
def test_the_same_stream_gives_the_same_answers(case: Case) -> None:
    assert_same(case.run(case.load()), case.run(case.load()))


@cases
def test_answers_are_finite_and_whole(case: Case) -> None:
    """Batches of one among others; probabilities that add up."""
    model = case.load()
    for batch in case.batches():
        result = model.predict(batch)
        assert result.logits.shape == (len(batch), model.info.classes)
        assert result.logits.dtype == np.float32
        assert np.isfinite(result.logits).all()
        np.testing.assert_allclose(result.probabilities.sum(axis=1), 1, rtol=1e-5)
    assert model.passes >= 0.999 * sum(SIZES)


@cases
def test_a_stream_of_single_images(case: Case) -> None:
    model = case.load()
    for image in case.images[:8]:
        assert np.isfinite(model.predict(image[None]).logits).all()


@cases
def test_reset_is_as_new(case: Case) -> None:
    model = case.load()
    first = case.run(model)
    model.reset()
    assert_same(first, case.run(model))


@cases
def test_a_saved_state_goes_on_bit_for_bit(case: Case, tmp_path: Path) -> None:
    model = case.load()
    case.run(model)
    model.save_state(tmp_path / "state")
    expected = case.run(model)
    other = case.load()
    other.load_state(tmp_path / "state")
    assert_same(expected, case.run(other))
    for name, array in snapshot(model).items():
        np.testing.assert_array_equal(array, snapshot(other)[name], err_msg=name)
    status, others = model.status(), other.status()
    assert status | {"passes": 0} == others | {"passes": 0}


@cases
def test_a_stream_leaves_its_mark(case: Case) -> None:
    """Otherwise the tests of reset and state would show nothing."""
    model = case.load()
    first = case.run(model)
    again = case.run(model)
    same = all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert same == (case.method in STATELESS)
    assert (snapshot(model) == {}) == (case.method in STATELESS)


@cases
def test_reading_changes_nothing(case: Case) -> None:
    model, undisturbed = case.load(), case.load()
    for batch in case.batches():
        before = snapshot(model)
        one, other = (model.predict(case.images[:5], adapt=False) for _ in range(2))
        assert not one.adapted
        np.testing.assert_array_equal(one.logits, other.logits)
        assert np.isfinite(one.logits).all()
        for name, array in snapshot(model).items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        np.testing.assert_array_equal(
            model.predict(batch).logits, undisturbed.predict(batch).logits
        )


@pytest.mark.parametrize(("method", "model"), [case for case in CASES if case[1] != "vit"])
def test_memory_is_bounded(case: Case) -> None:
    """210 batches: a state of the same shape throughout, and nothing else that grows."""
    model = case.load()

    def stream(count: int) -> int:
        for index in range(count):
            model.predict(case.images[index % 64 : index % 64 + 1])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    shapes = {name: (array.shape, array.dtype) for name, array in snapshot(model).items()}
    stream(170)
    tracemalloc.start()
    try:
        stream(20)  # what is kept and replaced in turns is seen only once it is replaced
        early, late = stream(10), stream(10)
    finally:
        tracemalloc.stop()
    assert late - early < 8_000
    assert shapes == {name: (array.shape, array.dtype) for name, array in snapshot(model).items()}


@cases
def test_labels_are_for_scoring_only(case: Case) -> None:
    assert list(inspect.signature(find(case.method).predict).parameters) == ["self", "images"]

    def answers(labels: dict[str, int] | None) -> list[Floats]:
        found: list[Floats] = []
        samples = [Sample(str(index), image) for index, image in enumerate(case.pixels[:32])]
        adapt_stream(
            case.load(),
            [samples[:16], samples[16:]],
            labels=labels,
            write=lambda names, probabilities, adapted: found.append(probabilities),
        )
        return found

    assert_same(answers(None), answers({str(index): index % 3 for index in range(32)}))


@cases
def test_status_is_for_reports(case: Case) -> None:
    model = case.load()
    for _ in range(2):
        status = model.status()
        assert json.loads(json.dumps(status, allow_nan=False)) == status
        case.run(model)


@cases
def test_bad_batches_leave_no_trace(case: Case) -> None:
    model = case.load()
    with pytest.raises(ZottaError):
        model.predict(np.full_like(case.images[:2], np.nan))
    with pytest.raises(ZottaError):
        model.predict(case.images[:2, :, 1:])
    assert_same(case.run(model), case.run(case.load()))


def assert_sound(state: dict[str, NDArray[Any]], new: dict[str, NDArray[Any]]) -> None:
    """Finite, but where a new model's state is not either: what it has not measured yet."""
    for name, array in state.items():
        if array.dtype.kind == "f":
            assert (np.isfinite(array) | ~np.isfinite(new[name])).all(), name


def extremes(like: Floats, share: float) -> Floats:
    """A batch of which some images alternate between the ends of float32."""
    batch = like.copy()
    batch[: max(1, round(share * len(batch)))] = 3e38
    batch[..., ::2] *= np.where(batch[..., ::2] > 1e38, -1, 1)
    return batch


@cases
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_numbers_that_overflow_are_not_learned(case: Case, share: float) -> None:
    """Below the check of what comes in: one such image made drift NaN for good."""
    model = case.load()
    new = snapshot(model)
    case.run(model)
    for batch in (case.images[:16], case.images[:1]):
        with pytest.raises(NotFiniteError), np.errstate(all="ignore"):
            model._method.predict(extremes(batch, share))
        assert_sound(snapshot(model), new)
    for logits in case.run(model):
        assert np.isfinite(logits).all()
    assert_sound(snapshot(model), new)


@cases
def test_what_no_image_can_become_is_refused(case: Case) -> None:
    model = case.load()
    case.run(model)
    with pytest.raises(ZottaError, match="this model's images lie between"):
        model.predict(extremes(case.images[:16], 0.1))
    other = case.load()
    case.run(other)
    assert_same(case.run(model), case.run(other))


@cases
def test_a_state_that_is_not_finite_is_refused(case: Case, tmp_path: Path) -> None:
    """With a checksum that fits: written by a model that had learned it."""
    model, other = case.load(), case.load()
    new = other.arrays()
    case.run(model)
    for name, array in model.arrays().items():
        if array.dtype.kind != "f" or not np.isfinite(new[name]).all():
            continue
        spoilt = {key: value.copy() for key, value in model.arrays().items()}
        spoilt[name].flat[-1] = np.nan
        save(tmp_path / "state", spoilt, model.fingerprint, model.method)
        with pytest.raises(ZottaError, match=re.escape(f"{name} is not finite")):
            other.load_state(tmp_path / "state")
    assert_same(case.run(other), case.run(case.load()))


@cases
def test_a_state_of_nonsense_is_refused_or_harmless(case: Case, tmp_path: Path) -> None:
    """Numbers that fit in shape and are finite, but that no stream has led to."""
    model = case.load()
    for number in (1e30, -3.0):
        spoilt = {
            key: np.full_like(value, number)
            for key, value in model.arrays().items()
            if value.dtype.kind == "f"
        }
        save(tmp_path / "state", model.arrays() | spoilt, model.fingerprint, model.method)
        other = case.load()
        with np.errstate(all="ignore"), contextlib.suppress(ZottaError):
            other.load_state(tmp_path / "state")
        with np.errstate(all="ignore"):
            for logits in case.run(other):
                assert np.isfinite(logits).all()


def test_help_names_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["adapt", "--help"])
    text = capsys.readouterr().out.replace(",", " ").split()
    assert set(METHODS) <= set(text)


@pytest.mark.parametrize("method", ["t3a", "zoa"])
def test_from_the_command_line(
    method: str, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    flags = ["--limit", "64", "--threads", "1", "--report", str(report)]
    stream = ["--model", str(models["vit"]), "--data", str(embedded.STREAM)]
    assert main(["adapt", *stream, "--method", method, *flags]) == 0
    found = json.loads(report.read_text())
    assert found["images"] == 64
    assert found["accuracy"]["adapted"] > 0.8


def test_an_unknown_method_is_refused_by_name(models: dict[str, Path]) -> None:
    with pytest.raises(ZottaError, match="is called tent: there are none, primed, moments, zotta"):
        AdaptiveModel.load(models["vit"], method="tent")
