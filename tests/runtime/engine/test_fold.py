"""A model without adaptation: the same answers, without the price of its affines."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import IMAGE, LOGITS
from zotta_edge.graph.index import Graph
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.fold import without_affines
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.sessions import open_session


@pytest.fixture(params=["kept", "folded"])
def model(request: pytest.FixtureRequest, residual_net: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(residual_net, tmp_path / "source.onnx")
    fold = request.param == "folded"
    options = ExportOptions(precision="fp32", mean=(0.5,), std=(0.5,), fold=fold)
    export_model(str(tmp_path / "source.onnx"), tmp_path / "out.onnx", options)
    return tmp_path / "out.onnx"


def test_answers_and_features_are_the_file_s(model: Path) -> None:
    size = read_info(model).preprocessing
    images = np.random.default_rng(0).normal(size=(4, 3, size.height, size.width))
    images = images.astype(np.float32)
    engine = Engine.open(model, chosen=())
    found = engine.cone(engine.stem(images), {})
    names = [LOGITS, *(layer.feature for layer in engine.info.layers)]
    logits, *features = open_session(model).run(names, {IMAGE: images})
    np.testing.assert_allclose(found.logits, logits, atol=1e-5)
    for own, expected in zip(found.features, features, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-5)


def test_inserted_affines_leave_no_node(model: Path) -> None:
    fixed = onnx.load_from_string(without_affines(model.read_bytes(), str(model)))
    assert [value.name for value in fixed.graph.input] == [IMAGE]
    graph = Graph(fixed)
    for norm in read_info(model).norms:
        assert bool(graph.consumers[norm.scale]) is not norm.inserted
