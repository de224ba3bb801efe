"""Preprocessing that is found by trial: the network itself tells how it wants its images."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.__main__ import main
from zotta_edge.export.images import Sampled
from zotta_edge.export.preprocessing import stated
from zotta_edge.export.sources.classifier import as_classifier
from zotta_edge.export.sources.source import read_onnx
from zotta_edge.export.trial import find_preprocessing
from zotta_edge.format import Preprocessing
from zotta_edge.models import embedded
from zotta_edge.presets import as_preset, usual
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.images import read_image
from zotta_edge.runtime.io.preprocessing import fit, prepare
from zotta_edge.sessions import open_session

RNG = np.random.default_rng(0)


def unlabelled(images: list[np.ndarray]) -> Sampled:
    return Sampled(images, [None] * len(images))


def test_the_embedded_model_tells_its_own() -> None:
    own = read_info(embedded.MODEL).preprocessing
    images = [fit(image, own) for image in embedded.digits(48)]
    p, trial = find_preprocessing(open_session(embedded.MODEL), own, unlabelled(images))
    assert (p.mean, p.std) == (own.mean, own.std)
    assert len(trial.tried) == 3
    assert trial.certain


def test_channels_are_read_in_the_order_of_the_network() -> None:
    p = Preprocessing(2, 2, (0.0,) * 3, (1.0,) * 3)
    red = np.zeros((1, 2, 2, 3), np.uint8)
    red[..., 0] = 255
    rgb, bgr = (prepare(red, as_preset(p, "imagenet", order)) for order in ("RGB", "BGR"))
    np.testing.assert_array_equal(bgr, rgb[:, ::-1])
    assert rgb[0, 0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)
    last = prepare(red, replace(as_preset(p, "caffe"), layout="NHWC"))
    np.testing.assert_allclose(last[0, 0, 0], [-103.939, -116.779, 255 - 123.68], rtol=1e-5)


def test_ten_ways_are_tried_on_colour_images() -> None:
    ways = usual(Preprocessing(8, 8, (0.0,) * 3, (1.0,) * 3))
    assert len(ways) == len({(p.mean, p.std, p.order) for p in ways.values()}) == 10
    assert ways["caffe"].order == ways["imagenet BGR"].order == "BGR"
    assert ways["raw"].std == (1 / 255,) * 3


CIFAR, PHOTOS = "cifar10_test_5000.npz", "imagenet-val-2000"


@pytest.mark.parametrize(
    ("file", "data", "right", "count"),
    [
        ("models/cifar10_resnet20_bn.onnx", CIFAR, "imagenet", 64),
        ("cifar10-rn26-gn", CIFAR, "half", 64),
        ("models/mobilenet_v2_tv_folded.onnx", PHOTOS, "imagenet", 24),
        ("models/mobilenetv2-12-qdq.onnx", PHOTOS, "imagenet", 24),
        pytest.param("models/squeezenet_fp16.onnx", PHOTOS, "caffe", 24, marks=pytest.mark.slow),
    ],
)
def test_published_files_tell_theirs(
    published_data: Path, file: str, data: str, right: str, count: int
) -> None:
    """Without labels, on images that the network was not trained on."""
    path = published_data / file
    path = next(path.glob("*.onnx")) if path.is_dir() else path
    classifier = as_classifier(read_onnx(path))
    p = stated(None, classifier)
    assert p.assumed
    if data == CIFAR:
        photos = np.load(published_data / data)["images"][4000 : 4000 + count]
    else:
        photos = [
            read_image(published_data / data / f"{n:04}.jpg") for n in range(1000, 1000 + count)
        ]
    images = [fit(photo, p) for photo in photos]
    session = open_session(classifier.graph.model.SerializeToString())
    _, trial = find_preprocessing(session, p, unlabelled(images))
    assert trial.tried[0].name == right


def colour_net(scale: float) -> onnx.ModelProto:
    """Three classes, by the strongest colour; -cos(pi x) tells 0 from 1, but not -1 from 1."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem/conv"),
        helper.make_node("BatchNormalization", ["c", "one", "shift", "zero", "one"], ["n"]),
        helper.make_node("GlobalAveragePool", ["n"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Sin", ["f"], ["s"]),
        helper.make_node("Gemm", ["s", "head"], ["y"]),
    ]
    weights = {
        "w": np.eye(3, dtype=np.float32)[:, :, None, None] * np.float32(np.pi),
        "one": np.ones(3, np.float32),
        "shift": np.full(3, -np.pi / 2, np.float32),
        "zero": np.zeros(3, np.float32),
        "head": np.eye(3, dtype=np.float32) * np.float32(scale),
    }
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def colours(folder: Path, count: int) -> Path:
    """Plain images of three colours, and labels.csv beside them."""
    cv2 = pytest.importorskip("cv2")
    folder.mkdir()
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        for index in range(count):
            pixels = RNG.integers(0, 60, (16, 16, 3), dtype=np.uint8)
            pixels[..., index % 3] += 180
            cv2.imwrite(str(folder / f"{index:02}.png"), pixels[..., ::-1])
            table.writerow([f"{index:02}.png", index % 3])
    return folder


def export(folder: Path, *flags: str) -> int:
    path = folder / "net.onnx"
    path.write_bytes(colour_net(9.0).SerializeToString())
    return main(
        ["export", str(path), "-o", str(folder / "out.onnx"), "--precision", "fp32", *flags]
    )


def test_the_choice_and_the_evidence_go_into_the_file(tmp_path: Path, capfd) -> None:
    photos = colours(tmp_path / "photos", 24)
    assert export(tmp_path, "--data", str(photos)) == 0
    captured = capfd.readouterr()
    assert (captured.err + captured.out).count("preprocessing found: none (1.") == 1
    assert "100% right" in captured.out
    info = read_info(tmp_path / "out.onnx")
    assert (info.preprocessing.mean, info.preprocessing.std) == ((0.0,) * 3, (1.0,) * 3)
    assert info.preprocessing.order == "RGB"
    assert not info.preprocessing.assumed
    assert info.trial is not None
    assert len(info.trial.tried) == 10
    assert main(["inspect", str(tmp_path / "out.onnx")]) == 0
    assert "preprocessing found: none" in capfd.readouterr().out
    assert main(["inspect", str(tmp_path / "out.onnx"), "--json"]) == 0
    described = json.loads(capfd.readouterr().out)
    assert described["trial"]["tried"][0]["name"] == "none"


def test_labels_tell_blue_from_red(tmp_path: Path) -> None:
    """Without labels nobody could: the answers are as certain and as many."""
    photos = colours(tmp_path / "photos", 24)
    swapped = tmp_path / "swapped.csv"
    rows = [line.split(",") for line in (photos / "labels.csv").read_text().splitlines()]
    swapped.write_text("".join(f"{name},{2 - int(number)}\n" for name, number in rows))
    assert export(tmp_path, "--data", str(photos), "--labels", str(swapped)) == 0
    assert read_info(tmp_path / "out.onnx").preprocessing.order == "BGR"
    (photos / "labels.csv").unlink()
    assert export(tmp_path, "--data", str(photos)) == 0
    info = read_info(tmp_path / "out.onnx")
    assert info.preprocessing.assumed
    assert info.trial is not None
    assert info.trial.tried[0].accuracy is None


def test_too_few_images_are_no_trial(tmp_path: Path, capfd) -> None:
    photos = colours(tmp_path / "photos", 5)
    assert export(tmp_path, "--data", str(photos)) == 0
    assert "ImageNet's mean and std are assumed" in capfd.readouterr().err
    assert read_info(tmp_path / "out.onnx").trial is None


def test_labels_of_another_model_are_not_used(tmp_path: Path, capfd) -> None:
    photos = colours(tmp_path / "photos", 12)
    (photos / "labels.csv").write_text("".join(f"{n:02}.png,{n + 500}\n" for n in range(12)))
    assert export(tmp_path, "--data", str(photos)) == 0
    assert "labels that lie with the images are not used" in capfd.readouterr().err
    assert export(tmp_path, "--data", str(photos), "--labels", str(photos / "labels.csv")) == 1
    assert "no class of the model" in capfd.readouterr().err


def test_flags_say_the_order(tmp_path: Path) -> None:
    assert export(tmp_path, "--preprocessing", "caffe") == 0
    p = read_info(tmp_path / "out.onnx").preprocessing
    assert p.order == "BGR"
    assert p.mean == pytest.approx((103.939 / 255, 116.779 / 255, 123.68 / 255))
    assert export(tmp_path, "--mean", "0.1,0.2,0.3", "--std", "1", "--bgr") == 0
    assert read_info(tmp_path / "out.onnx").preprocessing.mean == (0.3, 0.2, 0.1)


def test_class_names_are_no_labels(tmp_path: Path, capfd) -> None:
    names = tmp_path / "names.txt"
    names.write_text("red\ngreen\nblue\n")
    for flag in ("--classes", "--labels"):
        assert export(tmp_path, flag, str(names)) == 0
        assert read_info(tmp_path / "out.onnx").labels == ("red", "green", "blue")
    assert export(tmp_path, "--classes", str(names), "--labels", str(names)) == 1
    assert "is no .csv or .npy" in capfd.readouterr().err
