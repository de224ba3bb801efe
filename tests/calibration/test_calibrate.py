"""Calibration as a whole: what the file says afterwards, and what is refused."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from zotta_edge.__main__ import main
from zotta_edge.calibration.calibrate import Settings, calibrate, select_layers, store
from zotta_edge.calibration.comparison import SHARES
from zotta_edge.calibration.samples import read_samples
from zotta_edge.calibration.selection import Choice
from zotta_edge.errors import ZottaError
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import to_metadata
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info

RULES = ("purity", "all", "parameters", "gradient", "influence")


def textures(count: int, size: int = 24, seed: int = 0) -> np.ndarray:
    """Smooth uint8 pictures, no two alike."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 5, 5, 3), np.uint8)
    return np.stack([cv2.resize(image, (size, size), interpolation=2) for image in coarse])


def write_images(folder: Path, images: np.ndarray) -> Path:
    folder.mkdir(parents=True)
    for index, image in enumerate(images):
        cv2.imwrite(str(folder / f"{index:03d}.png"), image[..., ::-1])
    return folder


@pytest.fixture(scope="session")
def exported(residual_net: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    onnx.save(residual_net, folder / "net.onnx")
    export_model(
        str(folder / "net.onnx"), folder / "int8.onnx", ExportOptions(mean=(0.5,), std=(0.25,))
    )
    return folder / "int8.onnx"


@pytest.fixture
def model(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(exported, tmp_path / "model.onnx"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", textures(20))


@pytest.fixture
def failure(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail with one line, and give that line."""

    def fail(*arguments: object) -> str:
        assert main(["calibrate", *map(str, arguments)]) == 1
        captured = capsys.readouterr()
        assert not captured.out
        (line,) = captured.err.splitlines()
        assert line.startswith("zotta-edge: error: ")
        return line

    return fail


def test_other_norms_are_not_taken_for_batch_norms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (embedded.MODEL, embedded.RESNET):
        model, digits = Path(shutil.copy(file, tmp_path)), embedded.corrupted_stream()
        images = np.stack([sample.image for sample in digits][:32])
        np.save(tmp_path / "digits.npy", images)
        command = ["calibrate", str(model), "--source", str(tmp_path / "digits.npy")]
        assert main([*command, "--layers", "1", "--dry-run"]) == 0
        assert "BatchNorm" not in capsys.readouterr().err


def test_everything_stands_in_the_file_and_the_graph_is_untouched(
    model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, plain = onnx.load(model), read_info(model)
    assert main(["calibrate", str(model), "--source", str(photos), "--seed", "3"]) == 0
    printed = capsys.readouterr()
    assert "20 source images instead of 256" in printed.err
    assert "points regained on degraded source images: moments" in printed.out
    moments = read_info(model).moments
    assert moments is not None
    assert moments.share in SHARES
    assert f"a site takes back {moments.share:.0%} of a drift" in printed.out
    assert onnx.load(model).graph.SerializeToString() == before.graph.SerializeToString()

    info = read_info(model)
    assert info.layers == plain.layers
    assert info.calibration is not None
    calibration = info.calibration
    assert (calibration.samples, calibration.rule, calibration.seed) == (20, "purity", 3)
    assert calibration.ood == "speckle_noise severity 3"
    assert calibration.seconds > 0
    assert len(calibration.source) == 64
    images = read_samples(photos, info.preprocessing, 20, seed=3).images / 255
    spread = np.mean([image.std() for image in images])
    assert calibration.pixels == pytest.approx((images.mean(), spread), abs=1e-3)
    assert all(0.5 <= value <= 1 for value in calibration.purity)
    for layer, value in zip(info.layers, calibration.purity, strict=True):
        assert f"{layer.name} " in printed.out
        assert f"{value:.3f}" in printed.out

    images = read_samples(photos, info.preprocessing, 64, seed=3).prepared(info.preprocessing)
    stock = ort.InferenceSession(model)
    for index, layer in enumerate(info.layers):
        (pooled,) = stock.run([layer.feature], {"image": images})
        np.testing.assert_allclose(calibration.mean[index], pooled.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(calibration.std[index], pooled.std(axis=0), atol=0.02)
    assert not [path for path in model.parent.iterdir() if path.name.endswith(".part")]


def test_a_second_run_replaces_the_first_and_the_same_seed_repeats_it(
    model: Path, photos: Path
) -> None:
    first = calibrate(model, photos)
    store(first)
    keys = [entry.key for entry in onnx.load(model).metadata_props]
    store(calibrate(model, photos, settings=Settings(seed=5)))
    assert [entry.key for entry in onnx.load(model).metadata_props] == keys
    assert read_info(model).calibration.seed == 5
    again = calibrate(model, photos)
    assert again.calibration.purity == first.calibration.purity
    assert again.calibration.source == first.calibration.source
    for one, other in zip(again.calibration.mean, first.calibration.mean, strict=True):
        np.testing.assert_array_equal(one, other)


def test_output_leaves_the_model_and_keeps_foreign_metadata(model: Path, photos: Path) -> None:
    proto = onnx.load(model)
    proto.metadata_props.add(key="author", value="somebody")
    onnx.save(proto, model)
    before = model.read_bytes()
    target = model.with_name("calibrated.onnx")
    assert main(["calibrate", str(model), "--source", str(photos), "-o", str(target)]) == 0
    assert model.read_bytes() == before
    assert read_info(target).calibration is not None
    assert {p.key: p.value for p in onnx.load(target).metadata_props}["author"] == "somebody"


def test_a_dry_run_writes_nothing(
    model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.read_bytes()
    assert main(["calibrate", str(model), "--source", str(photos), "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] is None
    assert [layer["name"] for layer in report["layers"]] == ["stem", "layer1", "layer2"]
    assert [layer["index"] for layer in report["layers"] if layer["chosen"]] == report["chosen"]
    assert model.read_bytes() == before


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_chooses_layers(model: Path, photos: Path, rule: str) -> None:
    choice = Choice(rule=rule, max_layers=2, tau=0.5)  # type: ignore[arg-type]
    report = calibrate(model, photos, settings=Settings(choice))
    assert len(report.calibration.chosen) == (3 if rule == "all" else 2)
    assert bool(report.calibration.purity) == (rule == "purity")
    assert report.calibration.rule == rule
    assert len(report.selection.scores) == (0 if rule == "all" else 3)


def test_given_layers_are_taken_and_nothing_is_measured(model: Path, photos: Path) -> None:
    report = calibrate(model, photos, textures(20), Settings(Choice(layers=(2, 0))))
    assert "not looked at" in report.notes[-1]
    assert report.calibration.chosen == (0, 2)
    assert report.calibration.purity == ()
    assert (report.calibration.rule, report.calibration.ood) == ("given", "none")


def test_a_strong_shift_is_pure_and_no_shift_falls_back(model: Path, photos: Path) -> None:
    dark = (textures(20, seed=9) // 16).astype(np.uint8)
    report = calibrate(model, photos, dark)
    assert report.calibration.chosen == (1, 2)
    assert min(report.calibration.purity) > 0.8
    same = calibrate(model, photos, textures(20, seed=9))
    assert len(same.calibration.chosen) == 1
    assert "no layer that may be chosen reaches tau" in same.notes[-1]


def test_the_device_selects_layers_from_batches_in_memory(model: Path) -> None:
    info = read_info(model)
    source, drifted = textures(16, 16), textures(16, 16, seed=1) // 16
    selection = select_layers(model, source, drifted.astype(np.uint8))
    assert selection.chosen == (1, 2)
    # A preprocessed batch is the same as the images it was made of.
    floats = [
        read_samples(images, info.preprocessing, 16, 0).prepared(info.preprocessing)
        for images in (source, drifted.astype(np.uint8))
    ]
    assert min(select_layers(model, *floats).scores) > 0.8
    with pytest.raises(ZottaError, match="at least 8 images of either domain, not 3"):
        select_layers(model, source, source[:3])


def test_images_come_from_folders_csvs_and_arrays(model: Path, photos: Path) -> None:
    p = read_info(model).preprocessing
    images = textures(20)
    np.savez(photos.parent / "images.npz", images=images, labels=np.arange(20) % 3)
    np.save(photos.parent / "images.npy", images)
    rows = [f"photos/{index:03d}.png,{index % 4}" for index in range(19, 9, -1)]
    listed = photos.parent / "order.csv"
    listed.write_text("\n".join(["file,label", *rows]))
    folder = read_samples(photos, p, 20, seed=1)
    for other in ("images.npz", "images.npy"):
        assert read_samples(photos.parent / other, p, 20, seed=1).fingerprint == folder.fingerprint
    assert read_samples(images, p, 20, seed=1).fingerprint == folder.fingerprint
    assert read_samples(photos, p, 20, seed=2).fingerprint != folder.fingerprint
    ordered = read_samples(listed, p, 8, seed=1)
    expected = read_samples(images[19:11:-1], p, 8, seed=0)
    assert sorted(ordered.digests) == sorted(expected.digests)
    assert ordered.digests[0] == read_samples(np.repeat(images[19:], 8, 0), p, 8, 0).digests[0]
    assert ordered.classes == {"0", "1", "2", "3"}
    assert read_samples(photos.parent / "images.npz", p, 20, 0).classes == {"0", "1", "2"}


def test_an_image_that_cannot_be_read_is_skipped_or_fatal(
    model: Path, photos: Path, failure: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = photos / "005.png"
    broken.write_bytes(broken.read_bytes()[:60])
    assert main(["calibrate", str(model), "--source", str(photos)]) == 0
    assert "note: skipped: " in (said := capsys.readouterr().err)
    assert "005.png" in said
    assert read_info(model).calibration.samples == 19
    assert "005.png" in failure(model, "--source", photos, "--strict")


def test_bad_input_is_one_line_and_leaves_the_file_alone(
    model: Path, photos: Path, tmp_path: Path, failure: Callable[..., str]
) -> None:
    before = model.read_bytes()
    (tmp_path / "empty").mkdir()
    few = write_images(tmp_path / "few", textures(5))
    np.save(tmp_path / "small.npy", textures(20, 8))
    np.save(tmp_path / "floats.npy", np.zeros((20, 16, 16, 3)))
    onnx.save(onnx.load(model), foreign := tmp_path / "foreign.onnx")
    stripped = onnx.load(foreign)
    del stripped.metadata_props[:]
    onnx.save(stripped, foreign)
    ok = ("--source", photos)
    assert "no images" in failure(model, "--source", tmp_path / "empty")
    assert "does not exist" in failure(model, "--source", tmp_path / "nowhere")
    assert "5 usable images" in failure(model, "--source", few)
    assert "too few" in failure(model, *ok, "--samples", "4")
    assert "8 x 8 images" in failure(model, "--source", tmp_path / "small.npy")
    assert "uint8" in failure(model, "--source", tmp_path / "floats.npy")
    assert "not made by zotta-edge" in failure(foreign, *ok)
    assert "not an ONNX model" in failure(photos / "000.png", *ok)
    assert "does not exist" in failure(tmp_path / "no" / "model.onnx", *ok)
    assert "no layer 3" in failure(model, *ok, "--layers", "1,3")
    assert "between 0.5 and 1" in failure(model, *ok, "--tau", "0.3")
    assert "seed" in failure(model, *ok, "--seed", "-1")
    assert "leave --layers" in failure(model, *ok, "--layers", "1", "--plot", tmp_path / "p.png")
    assert "ends in .png" in failure(model, *ok, "--plot", tmp_path / "p.txt")
    assert "there is no folder" in failure(model, *ok, "-o", tmp_path / "no" / "where.onnx")
    assert "is a folder" in failure(model, *ok, "-o", tmp_path)
    assert model.read_bytes() == before


def test_ood_images_must_say_something_about_the_domain(
    model: Path, tmp_path: Path, failure: Callable[..., str]
) -> None:
    source = tmp_path / "source"
    for name, seed in (("cat", 0), ("dog", 1)):
        write_images(source / name, textures(10, seed=seed))
    write_images(tmp_path / "ood" / "cat", textures(16, seed=2))
    write_images(tmp_path / "alike", np.repeat(textures(1), 16, axis=0))
    write_images(tmp_path / "flat", textures(16, seed=3))
    (tmp_path / "flat" / "labels.csv").write_text(
        "\n".join(["file,label", *(f"{index:03d}.png,7" for index in range(16))])
    )
    ok = (model, "--source", source)
    assert "single class (cat)" in failure(*ok, "--ood", tmp_path / "ood")
    assert "single class (7)" in failure(*ok, "--ood", tmp_path / "flat")
    assert "only 1 different" in failure(*ok, "--ood", tmp_path / "alike")
    assert "holds the source images" in failure(*ok, "--ood", source)


def test_purity_is_drawn(model: Path, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("purity.png", "purity.svg"):
        plot = tmp_path / name
        assert main(["calibrate", str(model), "--source", str(photos), "--plot", str(plot)]) == 0
        assert plot.stat().st_size > 5_000
    assert cv2.imread(str(tmp_path / "purity.png")).std() > 10


def test_without_matplotlib_drawing_fails_before_the_work(
    model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, failure: Callable[..., str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "zotta-edge[bench]" in failure(model, "--source", photos, "--plot", "purity.png")


def test_a_device_without_scikit_learn_is_told_what_to_do(
    model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, failure: Callable[..., str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    line = failure(model, "--source", photos)
    assert "--layers" in line
    assert "zotta-edge[calibrate]" in line


def test_a_device_without_scikit_learn_calibrates_and_primes_given_layers(
    model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sklearn", "scipy", "joblib"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["calibrate", str(model), "--source", str(photos), "--layers", "1", "--prime"]) == 0
    assert read_info(model).prime is not None


def test_settings_refuse_nonsense() -> None:
    with pytest.raises(ZottaError, match="too few"):
        Settings(samples=7)
    with pytest.raises(ZottaError, match="seed"):
        Settings(seed=-1)


def test_the_file_is_copied_byte_for_byte_but_for_its_metadata(model: Path, photos: Path) -> None:
    """As protobuf itself would write it, for a model with every kind of top-level field."""
    proto = onnx.load(model)
    proto.model_version = 2**40 + 7
    proto.doc_string = "ünïcode " * 40
    proto.metadata_props.insert(0, onnx.StringStringEntryProto(key="author", value="somebody"))
    proto.functions.add(name="unused", domain="nowhere")
    onnx.save(proto, model)
    store(report := calibrate(model, photos, settings=Settings(Choice(layers=(1,)))))
    expected = onnx.load(model)
    found = {entry.key: entry.value for entry in expected.metadata_props}
    assert found == {"author": "somebody"} | to_metadata(report.info)
    del expected.metadata_props[:], proto.metadata_props[:]
    assert expected.SerializeToString(deterministic=True) == proto.SerializeToString(
        deterministic=True
    )
