"""FP8: activations land on E4M3 numbers, weights are widened once, stock sessions load it."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.export.quantize.fp8 import quantize_fp8
from zotta_edge.format import IMAGE


def rounding_model(width: int) -> onnx.ModelProto:
    """Two products with the identity: the second reads an activation, which gets rounded."""
    eye = np.eye(width, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", [IMAGE, "a"], ["x"]),
        helper.make_node("MatMul", ["x", "b"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(IMAGE, TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", width])],
        [numpy_helper.from_array(eye, "a"), numpy_helper.from_array(eye, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_activations_are_rounded_to_e4m3_ties_included() -> None:
    rng = np.random.default_rng(0)
    grid = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    grid = np.sort(grid[np.isfinite(grid)])
    ties = (grid[1:] + grid[:-1]) / 2
    values = np.concatenate([grid, ties, rng.normal(0, 30, 4000), rng.normal(0, 0.01, 4000)])
    values = np.resize(values.astype(np.float32), (-(-len(values) // 16), 16))
    # The scale is the power of two that leaves headroom above the largest value seen.
    model, _ = quantize_fp8(rounding_model(16), values)
    found = ort.InferenceSession(model.SerializeToString()).run(None, {IMAGE: values})[0]
    scales = [2.0**power for power in range(-3, 8)]
    matches = [
        np.array_equal(found, scale * (values / scale).astype(ml_dtypes.float8_e4m3fn).astype("f4"))
        for scale in scales
    ]
    assert sum(matches) == 1


def test_a_net_without_weights_worth_storing_in_8_bits_stays_as_it_is() -> None:
    model, _ = quantize_fp8(rounding_model(8))
    assert [node.op_type for node in model.graph.node] == ["MatMul", "MatMul"]


def test_weights_are_widened_once_at_load(residual_net: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(residual_net, tmp_path / "net.onnx")
    path = tmp_path / "fp8.onnx"
    export_model(
        str(tmp_path / "net.onnx"), path, ExportOptions(precision="fp8", mean=(0.5,), std=(0.5,))
    )
    kinds = {tensor.data_type for tensor in onnx.load(path).graph.initializer}
    assert TensorProto.FLOAT8E4M3FN in kinds
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(path, options)  # no option that a user would have to know
    optimized = onnx.load(tmp_path / "optimized.onnx").graph
    assert not any(node.op_type in ("Cast", "DequantizeLinear") for node in optimized.node)


@pytest.mark.parametrize("model", ["deit-tiny/deit_tiny_fp32.onnx"])
def test_size_of_a_real_transformer(model: str, shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / model
    options = ExportOptions(precision="fp8", mean=(0.5,), std=(0.5,))
    export_model(str(source), tmp_path / "fp8.onnx", options)
    assert (tmp_path / "fp8.onnx").stat().st_size <= 0.30 * source.stat().st_size
