"""Networks without norms get affines of their own, float or quantized by other tools."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nets
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from zotta_edge.__main__ import main
from zotta_edge.errors import ZottaError
from zotta_edge.export.norms.expose import expose_norms
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.export.sources.classifier import as_classifier
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.fold import without_affines
from zotta_edge.runtime.engine.head import Head
from zotta_edge.sessions import open_session

quantization = pytest.importorskip("onnxruntime.quantization")
OPTIONS = ExportOptions(mean=(0.5,), std=(0.25,))


@pytest.fixture
def folded(residual_net: onnx.ModelProto, tmp_path: Path) -> Path:
    """The residual net with BatchNorm folded into Conv, as exporters leave it."""
    model = onnx.ModelProto()
    model.CopyFrom(residual_net)
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    kept = []
    for node in model.graph.node:
        if node.op_type != "BatchNormalization":
            kept.append(node)
            continue
        scale, shift, mean, variance = (stored.pop(name) for name in node.input[1:])
        gain = scale / np.sqrt(variance + 1e-5)
        conv = makers[node.input[0]]
        stored[conv.input[1]] = stored[conv.input[1]] * gain.reshape(-1, 1, 1, 1)
        stored[f"{conv.name}.bias"] = shift - mean * gain
        conv.input.append(f"{conv.name}.bias")
        conv.output[0] = node.output[0]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(kept)
    arrays = {
        name: value if value.dtype == np.int64 else value.astype(np.float32)
        for name, value in stored.items()
    }
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in arrays.items())
    path = tmp_path / "folded.onnx"
    onnx.save(model, path)
    return path


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 3, 16, 16)).astype(np.float32)


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self._name = name
        self._batches: Iterator[np.ndarray] = iter(np.split(images(8), 4))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self._batches, None)
        return None if batch is None else {self._name: batch}


def quantize(folded: Path, how: str) -> Path:
    """The file as `onnxruntime.quantization` makes it."""
    output = folded.with_name(f"{how}.onnx")
    if how == "dynamic":
        quantization.quantize_dynamic(folded, output)
        return output
    kind, *flags = how.split("-")
    quantization.quantize_static(
        folded,
        output,
        _Reader(onnx.load(folded).graph.input[0].name),
        quant_format=quantization.QuantFormat[kind],
        per_channel="channels" in flags,
        activation_type=quantization.QuantType.QInt8
        if "s8" in flags
        else quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    return output


QUANTIZED = ["dynamic", "QDQ", "QDQ-s8-channels", "QOperator", "QOperator-channels"]


def run(
    path: Path,
    feeds: dict[str, np.ndarray],
    level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    return np.asarray(ort.InferenceSession(path, options).run(None, feeds)[0])


def test_folded_network_gets_one_affine_a_block(folded: Path) -> None:
    said: list[str] = []
    classifier = as_classifier(onnx.load(folded))
    exposed = expose_norms(classifier, said.append)
    # The two convolutions before the residual sums; the stem's is followed by an activation.
    assert [item.norm.name for item in exposed] == ["layer1.1.conv", "layer2.1.conv"]
    assert all(item.norm.inserted for item in exposed)
    assert said == ["the model has no norms: 2 affines are inserted behind its products"]


@pytest.mark.parametrize("how", QUANTIZED)
def test_where_no_affine_moves_the_integers_are_as_they_came(how: str, folded: Path) -> None:
    """The graph that answers without adaptation has no affine, and the same answers."""
    path = quantize(folded, how)
    output = path.with_name("out.onnx")
    info = export_model(str(path), output, ExportOptions("int8", mean=(0.5,), std=(0.25,)))
    fixed = onnx.load_from_string(without_affines(output.read_bytes(), str(output)))
    assert not {norm.scale for norm in info.norms} & {n for x in fixed.graph.node for n in x.input}
    engine = Engine.open(output, chosen=())
    found = engine.cone(engine.stem(images()), {})
    np.testing.assert_array_equal(found.logits, run(output, {"image": images()}))
    names = [layer.feature for layer in info.layers]
    features = open_session(output).run(names, {"image": images()})
    for own, expected in zip(found.features, features, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-5)


def test_inserted_affines_are_exact_and_work_for_each_sample(folded: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    info = export_model(str(folded), output, ExportOptions("fp32", mean=(0.5,), std=(0.25,)))
    # Bit for bit, unless ONNX Runtime lays tensors out in blocks: its sums then have another order.
    extended = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    np.testing.assert_array_equal(
        run(output, {"image": images()}, extended), run(folded, {"x": images()}, extended)
    )
    np.testing.assert_allclose(
        run(output, {"image": images()}), run(folded, {"x": images()}), atol=1e-6
    )
    norm = info.norms[-1]
    np.testing.assert_array_equal(info.affines[norm.scale], np.ones(norm.shape))
    moved = np.zeros((4, *norm.shape[1:]), np.float32)
    moved[1] = 0.5
    changed = run(output, {"image": images(), norm.shift: moved}) - run(output, {"image": images()})
    assert [bool(np.abs(row).max() > 1e-3) for row in changed] == [False, True, False, False]


def test_pattern_says_which_products(folded: Path) -> None:
    classifier = as_classifier(onnx.load(folded))
    exposed = expose_norms(classifier, pattern=r"layer1\.\d")
    assert {item.norm.name for item in exposed} == {"layer1.0.conv", "layer1.1.conv"}
    with pytest.raises(ZottaError, match="matches none of the 5 products.*layer2"):
        expose_norms(as_classifier(onnx.load(folded)), pattern="nowhere")
    with pytest.raises(ZottaError, match="not a regular expression"):
        expose_norms(as_classifier(onnx.load(folded)), pattern="(")


@pytest.mark.parametrize("how", QUANTIZED)
def test_quantized_file_keeps_its_integers(folded: Path, tmp_path: Path, how: str) -> None:
    source, output = quantize(folded, how), tmp_path / "out.onnx"
    info = export_model(str(source), output, OPTIONS)
    assert info.recipe.precision == "int8"
    assert info.recipe.scheme == f"as found: {how.split('-')[0]}"
    assert len(info.norms) == 2
    expected = run(source, {"x": images()})
    np.testing.assert_allclose(
        run(output, {"image": images()}), expected, atol=0.02 * np.abs(expected).max()
    )
    weights = [
        Counter(numpy_helper.to_array(one).tobytes() for one in onnx.load(path).graph.initializer
                if one.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8) and one.dims)
        for path in (source, output)
    ]  # fmt: skip
    assert not weights[0] - weights[1]


@pytest.mark.parametrize("how", QUANTIZED)
def test_quantized_file_answers_to_its_affines(folded: Path, tmp_path: Path, how: str) -> None:
    output = tmp_path / "out.onnx"
    info = export_model(str(quantize(folded, how)), output, OPTIONS)
    before = run(output, {"image": images()})
    for norm in info.norms:
        moved = np.full(norm.shape, 0.5, np.float32)
        assert np.abs(run(output, {"image": images(), norm.shift: moved}) - before).max() > 1e-3
    weight, bias = Head.open(Engine.open(output, chosen=(0,), threads=1)).weights()
    assert weight.shape[1] == len(bias) == info.classes


@pytest.mark.parametrize("how", ["dynamic", "QDQ"])
def test_quantized_file_calibrates_and_adapts(
    folded: Path, tmp_path: Path, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source, output = quantize(folded, how), tmp_path / "out.onnx"
    pixels = tmp_path / "pixels.npy"
    np.save(pixels, np.random.default_rng(1).integers(0, 256, (32, 16, 16, 3), np.uint8))
    assert main(["adapt", "--model", str(source), "--data", str(pixels)]) == 1
    error = capfd.readouterr().err
    assert "zotta-edge export" in error
    assert "zotta-edge calibrate" in error
    assert main(["export", str(source), "-o", str(output), "--mean", "0.5", "--std", "0.25"]) == 0
    flags = ["--source", str(pixels), "--samples", "16", "--layers", "0", "--prime"]
    assert main(["calibrate", str(output), *flags]) == 0
    assert main(["adapt", "--model", str(output), "--data", str(pixels), "--baseline"]) == 0


@pytest.mark.parametrize("how", ["dynamic", "QDQ", "QOperator"])
def test_norms_of_a_quantized_transformer_are_its_own(tmp_path: Path, how: str) -> None:
    source, output = tmp_path / "vit.onnx", tmp_path / "out.onnx"
    onnx.save(nets.load("vit", 17), source)
    info = export_model(str(quantize(source, how)), output, OPTIONS)
    assert [norm.name for norm in info.norms][:2] == ["blocks.0.norm1", "blocks.0.norm2"]
    assert [layer.name for layer in info.layers] == ["blocks.0", "blocks.1", "blocks.2", "norm"]
    assert not any(norm.inserted for norm in info.norms)


def test_quantized_file_is_not_quantized_again(
    folded: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = quantize(folded, "QDQ")
    assert main(["export", str(source), "-o", str(tmp_path / "o.onnx"), "--precision", "fp8"]) == 1
    assert "leave --precision out" in capfd.readouterr().err


def test_unknown_integer_operator_is_named() -> None:
    contrib = "com.microsoft"
    node = helper.make_node("QLinearWhere", ["x"], ["y"], name="where_7", domain=contrib)
    graph = helper.make_graph(
        [node], "tiny", [helper.make_tensor_value_info("x", 1, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, ["n", 3])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(contrib, 1)]
    with pytest.raises(ZottaError, match="where_7 is a QLinearWhere.*QDQ form"):
        as_classifier(helper.make_model(graph, opset_imports=opsets, ir_version=8))


@pytest.mark.parametrize(
    ("name", "scheme", "norms"),
    [
        ("mobilenet_v2_tv_folded", "", 17),
        ("mobilenetv2-12-qdq", "as found: QDQ", 17),
        ("mobilenetv2_12_dynamic_int8_goku", "as found: dynamic", 17),
        ("plant_mobilenetv2_dynamic_int8", "as found: dynamic", 17),
    ],
)
def test_files_of_other_people(
    published_data: Path, tmp_path: Path, name: str, scheme: str, norms: int
) -> None:
    source = published_data / "models" / f"{name}.onnx"
    if not source.exists():
        pytest.skip("the file is not here")
    info = export_model(str(source), tmp_path / "out.onnx", OPTIONS)
    assert scheme in info.recipe.scheme
    assert len(info.norms) == norms
    assert all(norm.inserted for norm in info.norms)
