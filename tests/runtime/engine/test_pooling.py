"""Means of maps, computed where the maps are: the same values by cheaper operators."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.format import EMBEDDING, IMAGE, Layer, ModelInfo, Preprocessing, Recipe
from zotta_edge.runtime.engine.pooling import pool_in_place
from zotta_edge.sessions import open_session

ROWS, COLUMNS, CHANNELS = 5, 7, 3
IMAGES = np.random.default_rng(0).normal(size=(2, CHANNELS, ROWS, COLUMNS)).astype(np.float32)
INFO = ModelInfo(
    preprocessing=Preprocessing(ROWS, COLUMNS, (0.5,) * CHANNELS, (0.5,) * CHANNELS),
    layers=(Layer("block", "feature.0", "map", "map", CHANNELS, ()),),
    recipe=Recipe("int8", "found", "any", "test"),
    affines={},
    classes=2,
)


def pooled(opset: int, axes: tuple[int, ...], codes: type | None = None, steps: int = 1):
    """The image, or what is left of it in codes, and its means by two names."""
    tensors, nodes, source = {}, [], IMAGE
    if codes:
        zero = np.full(steps, 117 if codes is np.uint8 else -9, codes)
        tensors = {"step": np.full(steps, 0.03, np.float32), "zero": zero}
        tensors = tensors if steps > 1 else {k: v.reshape(()) for k, v in tensors.items()}
        for op, name in (("QuantizeLinear", "codes"), ("DequantizeLinear", "map")):
            nodes.append(helper.make_node(op, [source, "step", "zero"], [name], axis=1))
            source = name
    for output in ("feature.0", EMBEDDING):
        if opset < 18:
            given, more = {"axes": axes}, []
        else:
            given, more = {}, ["axes"]
            tensors["axes"] = np.array(axes, np.int64)
        nodes.append(helper.make_node("ReduceMean", [source, *more], [output], keepdims=0, **given))
    image = helper.make_tensor_value_info(IMAGE, TensorProto.FLOAT, ["batch", *IMAGES.shape[1:]])
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("feature.0", EMBEDDING)]
    stored = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "pooled", [image], outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("codes", [None, np.uint8, np.int8])
def test_the_means_are_the_same(codes: type | None, opset: int) -> None:
    model = pooled(opset, (2, 3), codes)
    expected = open_session(model.SerializeToString()).run(None, {IMAGE: IMAGES})
    pool_in_place(model, INFO)
    assert ("MatMulInteger" if codes else "GlobalAveragePool") in operators(model)
    assert not {"ReduceMean", "DequantizeLinear"} & operators(model)
    found = open_session(model.SerializeToString()).run(None, {IMAGE: IMAGES})
    for own, mean in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, mean, atol=1e-6)


def test_a_step_for_each_channel_is_no_common_factor() -> None:
    model = pooled(13, (2, 3), np.uint8, CHANNELS)
    pool_in_place(model, INFO)
    assert operators(model) == {
        "QuantizeLinear",
        "DequantizeLinear",
        "GlobalAveragePool",
        "Flatten",
    }


def test_other_layouts_stay() -> None:
    model = pooled(18, (1, 2))
    pool_in_place(model, INFO)
    assert operators(model) == {"ReduceMean"}
