"""The head that is cut out of a file answers as the file does."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import toy
from onnx import helper, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.head import Head


def opened(path: Path) -> tuple[Engine, Head]:
    engine = Engine.open(path, chosen=(), threads=1)
    return engine, Head.open(engine)


def outputs(engine: Engine) -> Outputs:
    pixels = engine.info.preprocessing
    shape = (6, pixels.channels, pixels.height, pixels.width)
    return engine.cone(engine.stem(np.random.default_rng(0).random(shape, np.float32)), {})


@pytest.mark.parametrize("path", [embedded.MODEL, embedded.RESNET])
def test_a_quantized_head_is_the_files_own(path: Path) -> None:
    engine, head = opened(path)
    found = outputs(engine)
    np.testing.assert_array_equal(head(found.embedding), found.logits)
    stored = {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    name = "head" if "head.bias" in stored else "fc"
    weight, bias = head.weights()
    dequantized = stored[f"{name}.weight.q"] * stored[f"{name}.weight.s"]
    np.testing.assert_allclose(weight, dequantized, atol=1e-6)
    np.testing.assert_array_equal(bias, stored[f"{name}.bias"])


def test_a_float_head(tmp_path: Path) -> None:
    path = toy.build(tmp_path / "toy.onnx")
    engine, head = opened(path)
    found = outputs(engine)
    np.testing.assert_array_equal(head(found.embedding), found.logits)
    weight, bias = head.weights()
    np.testing.assert_allclose(found.embedding @ weight + bias, found.logits, atol=1e-5)


def test_a_head_that_reads_tokens(tmp_path: Path) -> None:
    """logits = mean over tokens of x W: the embedding takes the place of the only token."""
    model = onnx.load(toy.build(tmp_path / "toy.onnx"))
    last = next(node for node in model.graph.node if "logits" in node.output)
    last.input[0], last.output[0] = f"x.{toy.BLOCKS}", "each"
    model.graph.node.append(
        helper.make_node("ReduceMean", ["each"], ["logits"], axes=[1], keepdims=0)
    )
    onnx.save(model, tmp_path / "tokens.onnx")
    engine, head = opened(tmp_path / "tokens.onnx")
    found = outputs(engine)
    np.testing.assert_allclose(head(found.embedding), found.logits, atol=1e-5)


def test_a_head_that_is_not_linear_has_no_weights(tmp_path: Path) -> None:
    model = onnx.load(toy.build(tmp_path / "toy.onnx"))
    last = next(node for node in model.graph.node if "logits" in node.output)
    last.output[0] = "straight"
    model.graph.node.append(helper.make_node("Tanh", ["straight"], ["logits"]))
    onnx.save(model, tmp_path / "bent.onnx")
    engine, head = opened(tmp_path / "bent.onnx")
    np.testing.assert_array_equal(head(outputs(engine).embedding), outputs(engine).logits)
    with pytest.raises(ZottaError, match="linear classifier"):
        head.weights()


def test_a_classifier_that_reads_more_than_the_embedding(tmp_path: Path) -> None:
    model = onnx.load(toy.build(tmp_path / "toy.onnx"))
    last = next(node for node in model.graph.node if "logits" in node.output)
    last.output[0] = "part"
    model.graph.node.extend(
        [
            helper.make_node("ReduceMax", ["image"], ["peak"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Unsqueeze", ["peak", "one"], ["column"]),
            helper.make_node("Add", ["part", "column"], ["logits"]),
        ]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    onnx.save(model, tmp_path / "more.onnx")
    with pytest.raises(ZottaError, match="reads more than the embedding"):
        opened(tmp_path / "more.onnx")
