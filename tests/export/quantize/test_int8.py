"""INT8: integers at work, none of them saturating, and logits that follow fp32's."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from zotta_edge.export.check import perturbed
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import ModelInfo


def export(source: Path, folder: Path, precision: str, target: str = "avx2") -> ModelInfo:
    options = ExportOptions(precision=precision, target=target, mean=(0.5,), std=(0.5,))  # type: ignore[arg-type]
    return export_model(str(source), folder / f"{precision}_{target}.onnx", options)


def codes(path: Path) -> list[np.ndarray]:
    """The weights that integer kernels multiply."""
    graph = onnx.load(path).graph
    integer = ("QLinearConv", "MatMulInteger", "QAttention")
    read = {name for node in graph.node if node.op_type in integer for name in node.input}
    arrays = [numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in read]
    return [array for array in arrays if array.dtype == np.int8]


@pytest.fixture(scope="module")
def deit(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelInfo]:
    folder = tmp_path_factory.mktemp("deit")
    source = shared_data / "deit-tiny" / "deit_tiny_fp32.onnx"
    export(source, folder, "fp32")
    return folder, export(source, folder, "int8")


@pytest.fixture
def integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's network is narrow; let its convolutions be integers all the same."""
    monkeypatch.setattr("zotta_edge.export.quantize.int8._FEWEST_PRODUCTS", 1)


@pytest.mark.parametrize(("target", "largest"), [("avx2", 63), ("vnni", 127), ("arm64", 127)])
def test_products_fit_the_target(
    target: str, largest: int, residual_net: onnx.ModelProto, tmp_path: Path, integers: None
) -> None:
    """Two products of 255 and a weight must fit 16 bits where the CPU adds them there."""
    onnx.save(residual_net, tmp_path / "net.onnx")
    export(tmp_path / "net.onnx", tmp_path, "int8", target)
    reached = max(int(np.abs(values).max()) for values in codes(tmp_path / f"int8_{target}.onnx"))
    assert reached == largest
    assert target != "avx2" or 2 * 255 * reached < 2**15


def test_a_transformer_runs_in_integers(deit: tuple[Path, ModelInfo]) -> None:
    folder, _ = deit
    operators = Counter(node.op_type for node in onnx.load(folder / "int8_avx2.onnx").graph.node)
    assert operators["QAttention"] == 12
    assert operators["MatMulInteger"] == 37  # projection and two MLP products a block, and the head
    assert operators["MatMul"] == operators["Gemm"] == 0


def test_convolutions_run_in_integers(
    residual_net: onnx.ModelProto, tmp_path: Path, integers: None
) -> None:
    onnx.save(residual_net, tmp_path / "net.onnx")
    export(tmp_path / "net.onnx", tmp_path, "int8")
    graph = onnx.load(tmp_path / "int8_avx2.onnx").graph
    operators = Counter(node.op_type for node in graph.node)
    assert operators["QLinearConv"] + operators["Conv"] == 5
    assert operators["QLinearConv"] >= 3


def test_narrow_convolutions_stay_in_fp32(residual_net: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(residual_net, tmp_path / "net.onnx")
    export(tmp_path / "net.onnx", tmp_path, "int8")
    operators = Counter(node.op_type for node in onnx.load(tmp_path / "int8_avx2.onnx").graph.node)
    assert operators["Conv"] == 5
    assert operators["QLinearConv"] == 0


def test_size_and_logits_of_a_real_transformer(
    deit: tuple[Path, ModelInfo], shared_data: Path
) -> None:
    folder, info = deit
    fp32, int8 = folder / "fp32_avx2.onnx", folder / "int8_avx2.onnx"
    assert int8.stat().st_size <= 0.30 * fp32.stat().st_size
    images = _photographs(shared_data, 8)
    moved = perturbed(info.affines, 0.5, np.random.default_rng(0))
    for affines in ({}, moved):
        feeds = {"image": images, **affines}
        expected, found = (
            ort.InferenceSession(path).run(["logits"], feeds)[0] for path in (fp32, int8)
        )
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 0.15


def _photographs(shared_data: Path, count: int) -> np.ndarray:
    import cv2

    paths = sorted((shared_data / "imagenet-val-2000").glob("*.jpg"))[:count]
    pixels = np.stack([cv2.imread(str(path))[:, :, ::-1] for path in paths]).astype(np.float32)
    normalised = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2), dtype=np.float32)
