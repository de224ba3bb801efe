"""The export as a whole: what comes out, what is refused, and that nothing is left behind."""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import export_files
import nets
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.__main__ import main
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.runtime.engine.model_info import read_info

FLAGS = ["--mean", "0.5", "--std", "0.25"]


@pytest.fixture
def source(residual_net: onnx.ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(residual_net, path)
    return path


def export(source: object, output: Path, *flags: str) -> int:
    return main(["export", str(source), "-o", str(output), *FLAGS, *flags])


@pytest.mark.parametrize("precision", ["int8", "fp8", "fp32"])
def test_file_is_an_ordinary_classifier(source: Path, tmp_path: Path, precision: str) -> None:
    output = tmp_path / "out.onnx"
    assert export(source, output, "--precision", precision) == 0
    images = np.random.default_rng(0).normal(size=(3, 3, 16, 16)).astype(np.float32)
    expected = ort.InferenceSession(source).run(None, {"x": images})[0]
    stock = ort.InferenceSession(output)  # default options, `image` alone
    logits, *features, embedding = stock.run(None, {"image": images})
    tolerance = 1e-4 if precision == "fp32" else 0.15 * np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, atol=tolerance)
    assert embedding.shape == (3, 16)
    info = read_info(output)
    assert [layer.name for layer in info.layers] == ["stem", "layer1", "layer2"]
    assert [feature.shape[1] for feature in features] == [layer.channels for layer in info.layers]
    assert info.preprocessing.mean == (0.5, 0.5, 0.5)
    assert info.recipe.precision == precision


def test_a_transformer_takes_few_sessions(tmp_path: Path, sessions: list[object]) -> None:
    """To read it, measure it, check it twice and quantize it: not one for each attention."""
    source = tmp_path / "vit.onnx"
    onnx.save(nets.load("vit", 17), source)
    options = ExportOptions(mean=(0.5,), std=(0.5,))
    export_model(str(source), tmp_path / "out.onnx", options)
    operators = {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}
    assert {"QAttention", "FastGelu"} <= operators
    assert len(sessions) == 7


def test_4_bits_are_refused_before_any_work(source: Path, tmp_path: Path, capfd) -> None:
    assert export(source, tmp_path / "out.onnx", "--precision", "int4") == 1
    told = capfd.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert "4 bits are for decoders" in told[0]
    assert not (tmp_path / "out.onnx").exists()


def test_affines_accept_one_value_a_sample(source: Path, tmp_path: Path) -> None:
    info = export_model(
        str(source),
        tmp_path / "out.onnx",
        ExportOptions(precision="fp32", mean=(0.5,), std=(0.5,)),
    )
    session = ort.InferenceSession(tmp_path / "out.onnx")
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 3, 16, 16)).astype(np.float32)
    each = [
        {k: v + 0.3 * rng.normal(size=v.shape).astype(np.float32) for k, v in info.affines.items()}
        for _ in range(2)
    ]
    both = {name: np.concatenate([one[name] for one in each]) for name in info.affines}
    together = session.run(["logits"], {"image": images, **both})[0]
    for index in range(2):
        alone = session.run(["logits"], {"image": images[index : index + 1], **each[index]})[0]
        np.testing.assert_allclose(together[index], alone[0], atol=1e-5)


def test_assumed_preprocessing_is_said(source: Path, tmp_path: Path, capfd) -> None:
    assert main(["export", str(source), "-o", str(tmp_path / "out.onnx")]) == 0
    assert "assumed" in capfd.readouterr().err
    assert read_info(tmp_path / "out.onnx").preprocessing.assumed


@pytest.mark.parametrize("ending", ["Softmax", "LogSoftmax"])
def test_a_softmax_at_the_end_is_cut(ending: str, residual_net, tmp_path: Path) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(residual_net)
    model.graph.node.append(helper.make_node(ending, ["y"], ["p"], axis=1))
    model.graph.output[0].name = "p"
    onnx.save(model, tmp_path / "net.onnx")
    assert export(tmp_path / "net.onnx", tmp_path / "out.onnx", "--precision", "fp32") == 0
    images = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    logits = ort.InferenceSession(tmp_path / "out.onnx").run(["logits"], {"image": images})[0]
    net = ort.InferenceSession(residual_net.SerializeToString())
    np.testing.assert_allclose(logits, net.run(None, {"x": images})[0], atol=1e-4)


def _external(model: onnx.ModelProto) -> onnx.ModelProto:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../weights.bin"
    return model


def _bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A classifier without norms and without convolutions."""
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 5])],
        [numpy_helper.from_array(np.ones((48, 5), np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


BAD_MODELS = {
    "external data": _external,
    "no norm layers": _bare,
}


@pytest.mark.parametrize("message", BAD_MODELS)
def test_unsuitable_model(
    message: str, residual_net: onnx.ModelProto, tmp_path: Path, capfd
) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(residual_net)
    path = tmp_path / "bad.onnx"
    path.write_bytes(BAD_MODELS[message](model).SerializeToString())
    assert_refused(path, tmp_path, capfd, message)


BAD_BYTES = {
    "not an ONNX file": lambda content: b"hello, this is no model at all",
    "is empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
}


@pytest.mark.parametrize("message", BAD_BYTES)
def test_unreadable_file(message: str, source: Path, tmp_path: Path, capfd) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(BAD_BYTES[message](source.read_bytes()))
    assert_refused(path, tmp_path, capfd, message)


def test_already_exported(source: Path, tmp_path: Path, capfd) -> None:
    assert export(source, tmp_path / "once.onnx") == 0
    capfd.readouterr()
    assert_refused(tmp_path / "once.onnx", tmp_path, capfd, "already exported")


def test_missing_file(tmp_path: Path, capfd) -> None:
    assert_refused(tmp_path / "nowhere.onnx", tmp_path, capfd, "nowhere.onnx")


def test_unknown_architecture(tmp_path: Path, capfd) -> None:
    assert_refused("vit_enormous", tmp_path, capfd, "vit_enormous")


def test_wrong_checkpoint(tmp_path: Path, capfd) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"some.weight": torch.zeros(3)}, tmp_path / "wrong.pth")
    flags = ("--weights", str(tmp_path / "wrong.pth"))
    assert_refused("vit_tiny_patch16_224", tmp_path, capfd, "some.weight", *flags)


def test_output_in_no_folder(source: Path, tmp_path: Path, capfd) -> None:
    assert export(source, tmp_path / "nowhere" / "out.onnx") == 1
    assert_one_line(capfd, "no folder")


def test_output_is_a_folder(source: Path, tmp_path: Path, capfd) -> None:
    assert export(source, tmp_path) == 1
    assert_one_line(capfd, "it is a folder")


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Writes fail past `limit` bytes of a file, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_disk_full_leaves_the_old_file(source: Path, tmp_path: Path, capfd) -> None:
    output = tmp_path / "out.onnx"
    output.write_bytes(b"old")
    with full_disk(1000):
        assert export(source, output) == 1
    assert_one_line(capfd, "cannot write")
    assert output.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*.part"))


def test_failed_check_writes_nothing(source: Path, tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.setattr("zotta_edge.export.check.MIN_COSINE", 1.1)
    assert export(source, tmp_path / "out.onnx") == 1
    assert_one_line(capfd, "self-check failed")
    assert not (tmp_path / "out.onnx").exists()


def assert_refused(source: object, folder: Path, capfd, message: str, *flags: str) -> None:
    """One line, exit code 1, nothing written, an existing output untouched."""
    before = sorted(folder.iterdir())
    assert export(source, folder / "out.onnx", *flags) == 1
    assert_one_line(capfd, message)
    assert sorted(folder.iterdir()) == before
    (folder / "old.onnx").write_bytes(b"old")
    assert export(source, folder / "old.onnx", *flags) == 1
    assert (folder / "old.onnx").read_bytes() == b"old"
    capfd.readouterr()


def assert_one_line(capfd, message: str) -> None:
    errors = [
        line
        for line in capfd.readouterr().err.splitlines()
        if line.startswith("zotta-edge: error:") or "Traceback" in line
    ]
    assert len(errors) == 1
    assert message in errors[0]


def test_mutated_files_never_end_in_a_traceback(source: Path, tmp_path: Path) -> None:
    """600 broken files, in children: a crash of native code would be seen too."""
    done = subprocess.run(
        [sys.executable, Path(export_files.__file__), source, tmp_path, "600"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "600 mutants" in done.stdout
    assert "exported" in done.stdout
    assert "refused" in done.stdout
