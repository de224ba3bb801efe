"""Files as other people's tools write them: old opsets, 16 bits, open axes, further inputs."""

import copy
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.__main__ import main
from zotta_edge.errors import ZottaError
from zotta_edge.export.sources.classifier import as_classifier
from zotta_edge.export.sources.half import to_single
from zotta_edge.export.sources.inputs import bind_inputs, find_image
from zotta_edge.export.sources.obstacles import UnsuitableError
from zotta_edge.export.sources.opset import with_opset
from zotta_edge.graph.nodes import opset

RNG = np.random.default_rng(0)


def run(model: onnx.ModelProto | Path, images: np.ndarray) -> np.ndarray:
    content = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(content)
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def noise(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def net(
    nodes: list[onnx.NodeProto],
    version: int,
    inputs: dict[str, list[int | str]],
    output: list[int | str],
    kind: int = TensorProto.FLOAT,
    **weights: np.ndarray,
) -> onnx.ModelProto:
    """From `inputs` to the tensor `y`."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", kind, output)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=4)


def batch_norm_net(
    version: int, dtype: type = np.float32, image: list[int | str] | None = None, factor: str = ""
) -> onnx.ModelProto:
    """Conv, BatchNorm, Clip, mean and Gemm; `factor` names an input that scales the features."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["c"], name="stem/conv"),
        make("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], name="stem/norm"),
        make("Clip", ["n"], ["r"], **({"min": 0.0, "max": 6.0} if version < 11 else {})),
        make("GlobalAveragePool", ["r"], ["p"]),
        make("Flatten", ["p"], ["f"]),
        *([make("Mul", ["f", factor], ["scaled"])] if factor else []),
        make("Gemm", ["scaled" if factor else "f", "head", "bias"], ["y"]),
    ]
    weights = {"w": noise(8, 3, 3, 3), "head": noise(8, 5), "bias": noise(5)}
    weights |= {"g": 1 + noise(8) / 9, "b": noise(8), "m": noise(8), "v": 1 + noise(8) ** 2}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = {"x": image or ["n", 3, 16, 16]} | ({factor: ["n", 8]} if factor else {})
    return net(
        nodes, version, inputs, ["n", 5], kind, **{k: v.astype(dtype) for k, v in weights.items()}
    )


def export(model: onnx.ModelProto, folder: Path, *flags: str) -> int:
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return main(["export", str(folder / "net.onnx"), "-o", str(folder / "out.onnx"), *flags])


@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_an_old_opset_is_raised(version: int, tmp_path: Path, capfd) -> None:
    model = batch_norm_net(version)
    assert export(model, tmp_path, "--precision", "fp32") == 0
    assert f"opset {version}: it is raised to 13" in capfd.readouterr().err
    assert opset(onnx.load(tmp_path / "out.onnx")) >= 13
    images = noise(2, 3, 16, 16)
    np.testing.assert_allclose(run(tmp_path / "out.onnx", images), run(model, images), atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("op", ["Upsample", "Resize"])
def test_a_raised_resize_samples_where_it_did(op: str, mode: str) -> None:
    node = helper.make_node(op, ["x", "scales"], ["y"], mode=mode)
    scales = np.array([1, 1, 2, 3], np.float32)
    version = 9 if op == "Upsample" else 10
    model = net([node], version, {"x": ["n", 2, 5, 4]}, ["n", 2, 10, 12], scales=scales)
    images = noise(2, 2, 5, 4)
    raised = with_opset(model, 13)
    assert opset(raised) == 13
    np.testing.assert_allclose(run(raised, images), run(model, images), atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_16_bit_file_is_exported_from_an_fp32_copy(precision: str, tmp_path: Path, capfd) -> None:
    model = batch_norm_net(13, np.float16)
    assert export(model, tmp_path, "--precision", precision) == 0
    assert "16-bit floats" in capfd.readouterr().err
    out = onnx.load(tmp_path / "out.onnx")
    kinds = {value.type.tensor_type.elem_type for value in (*out.graph.input, *out.graph.output)}
    assert kinds == {TensorProto.FLOAT}
    images = noise(2, 3, 16, 16)
    expected = run(model, images.astype(np.float16)).astype(np.float32)
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(run(tmp_path / "out.onnx", images), expected, atol=0.05 * scale)


def test_casts_constants_and_branches_are_widened_too() -> None:
    """`x` in fp32 goes through fp16 and back, with an fp16 constant in an If."""
    one = numpy_helper.from_array(np.array([1.5], np.float16))
    branch = helper.make_graph(
        [
            helper.make_node("Constant", [], ["one"], value=one),
            helper.make_node("Add", ["h", "one"], ["sum"]),
        ],
        "branch",
        [],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT16, None)],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch),
        helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
    ]
    model = net(nodes, 13, {"x": ["n", 3]}, ["n", 3], yes=np.array(True))
    images = noise(2, 3)
    widened = copy.deepcopy(model)
    assert to_single(widened)
    assert not to_single(widened)
    np.testing.assert_array_equal(run(widened, images), images + np.float32(1.5))
    np.testing.assert_allclose(run(model, images), images + 1.5, atol=1e-2)


def test_axes_of_minus_one_are_open(tmp_path: Path, capfd) -> None:
    model = batch_norm_net(13, image=[-1, 3, -1, -1])
    assert export(model, tmp_path) == 1
    assert "leaves its size open: give it with --size HxW" in capfd.readouterr().err
    assert export(model, tmp_path, "--size", "8x20") == 0
    images = noise(3, 3, 8, 20)
    assert run(tmp_path / "out.onnx", images).shape == (3, 5)


def test_channels_left_open_are_those_of_the_first_conv() -> None:
    classifier = as_classifier(batch_norm_net(13, image=["n", "c", "h", "w"]), (16, 16))
    assert (classifier.channels, classifier.layout) == (3, "NCHW")


def test_photographs_fit_an_input_that_is_not_square(tmp_path: Path) -> None:
    """Tall and wide ones: a crop of the resized shorter side would not be wide enough."""
    cv2 = pytest.importorskip("cv2")
    (tmp_path / "photos").mkdir()
    for name, size in (("tall", (60, 20, 3)), ("wide", (20, 60, 3))):
        pixels = RNG.integers(0, 255, size, dtype=np.uint8)
        cv2.imwrite(str(tmp_path / f"photos/{name}.png"), pixels)
    flags = ("--size", "8x32", "--data", str(tmp_path / "photos"))
    assert export(batch_norm_net(13, image=["n", 3, "h", "w"]), tmp_path, *flags) == 0


def test_another_input_needs_a_value(tmp_path: Path, capfd) -> None:
    model = batch_norm_net(13, factor="factor")
    assert export(model, tmp_path) == 1
    assert "factor float [?, 8] is an input besides the image x" in capfd.readouterr().err
    assert export(model, tmp_path, "--precision", "fp32", "--input", "factor=2") == 0
    images = noise(2, 3, 16, 16)
    session = ort.InferenceSession(model.SerializeToString())
    expected = session.run(None, {"x": images, "factor": np.full((2, 8), 2, np.float32)})[0]
    np.testing.assert_allclose(run(tmp_path / "out.onnx", images), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("factor=1,2", "has 2 values: one is needed, or 8 for float [?, 8]"),
        ("other=1", "--input other: the model's inputs are x, factor"),
        ("factor", "not of the form NAME=VALUE"),
        ("factor=much", "not a list of numbers"),
    ],
)
def test_values_that_fit_no_input(flag: str, message: str, tmp_path: Path, capfd) -> None:
    assert export(batch_norm_net(13, factor="factor"), tmp_path, "--input", flag) == 1
    assert message in capfd.readouterr().err


def test_the_image_is_told_by_its_shape_or_its_name() -> None:
    node = helper.make_node("Sum", ["a", "b", "image"], ["y"])
    maps: list[int | str] = ["n", 3, 4, 4]
    model = net([node], 13, {"a": maps, "b": [1], "image": maps}, maps)
    assert getattr(find_image(model), "name", None) == "image"
    bind_inputs(model, {"image": (0.0,)})
    assert getattr(find_image(model), "name", None) == "a"
    twins = net([node], 13, {"a": maps, "b": maps, "image": [1]}, maps)
    assert find_image(twins) is None
    with pytest.raises(ZottaError, match="none is plainly the image"):
        as_classifier(twins)


def test_inputs_that_nothing_reads_are_left_out() -> None:
    model = batch_norm_net(13)
    unread = helper.make_tensor_value_info("unread", TensorProto.FLOAT, [1])
    model.graph.input.insert(0, unread)
    assert as_classifier(model).classes == 5


def test_all_obstacles_are_named_at_once() -> None:
    model = batch_norm_net(13, image=["n", 3, "h", "w"], factor="factor")
    with pytest.raises(UnsuitableError) as caught:
        as_classifier(model)
    ways = ("--input factor=VALUE", "--size HxW")
    pairs = zip(caught.value.obstacles, ways, strict=True)
    assert all(way in obstacle for obstacle, way in pairs)
    assert "2 obstacles: (1)" in str(caught.value)


def test_a_network_in_training_is_refused() -> None:
    model = batch_norm_net(13)
    model.graph.node.append(
        helper.make_node("RandomUniformLike", ["f"], ["drawn"], name="drop/rand")
    )
    model.graph.node.append(helper.make_node("Dropout", ["f", "", "yes"], ["kept"], name="drop"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    with pytest.raises(
        UnsuitableError, match=r"random numbers \(RandomUniformLike drop/rand, 2 in all"
    ):
        as_classifier(model)


def test_inspect_lists_the_obstacles_and_fails(tmp_path: Path, capfd) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(batch_norm_net(13, image=["n", 3, -1, -1], factor="f2").SerializeToString())
    assert main(["inspect", str(path)]) == 1
    head, verdict, *obstacles = capfd.readouterr().out.splitlines()
    assert "plain ONNX file" in head
    assert verdict == "cannot be adapted as it is:"
    assert [line[:2] for line in obstacles] == ["- ", "- "]
    assert main(["inspect", str(path), "--json"]) == 1
    assert len(json.loads(capfd.readouterr().out)["obstacles"]) == 2
    path.write_bytes(batch_norm_net(13).SerializeToString())
    assert main(["inspect", str(path)]) == 0
    assert "running it on images of 3 x 16 x 16" in capfd.readouterr().err


def dead_ended_net() -> onnx.ModelProto:
    """A second norm whose output is multiplied by zero, and a third whose shift cancels out."""
    model = batch_norm_net(13)
    norm, make = ["g", "b", "m", "v"], helper.make_node
    fresh = [
        make("BatchNormalization", ["n", *norm], ["n2"], name="dead/norm"),
        make("Mul", ["n2", "nought"], ["gone"]),
        make("BatchNormalization", ["n", *norm], ["n3"], name="half/norm"),
        make("ReduceMean", ["n3"], ["centre"], axes=[2, 3]),
        make("Sub", ["n3", "centre"], ["centred"]),
        make("Sum", ["n", "gone", "centred"], ["total"]),
    ]
    nodes = list(model.graph.node)
    nodes[2].input[0] = "total"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:2], *fresh, *nodes[2:]])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "nought"))
    return model


def test_a_dead_norm_stays_fixed_and_is_named(tmp_path: Path, capfd) -> None:
    assert export(dead_ended_net(), tmp_path, "--precision", "fp32") == 0
    assert "dead.scale, dead.shift stay fixed" in capfd.readouterr().err
    inputs = [value.name for value in onnx.load(tmp_path / "out.onnx").graph.input]
    assert "dead.scale" not in inputs
    assert {"image", "stem.scale", "stem.shift", "half.scale"} <= set(inputs)


def test_a_model_without_any_effect_is_refused(tmp_path: Path, capfd) -> None:
    model = batch_norm_net(13)
    head = next(tensor for tensor in model.graph.initializer if tensor.name == "head")
    head.CopyFrom(numpy_helper.from_array(np.zeros((8, 5), np.float32), "head"))
    assert export(model, tmp_path) == 1
    assert "no scale or shift of any norm changes the logits" in capfd.readouterr().err


def test_logits_that_are_all_but_zero_are_compared(tmp_path: Path) -> None:
    model = batch_norm_net(13)
    for tensor in model.graph.initializer:
        if tensor.name in ("head", "bias"):
            small = numpy_helper.to_array(tensor) * np.float32(1e-28)
            tensor.CopyFrom(numpy_helper.from_array(small, tensor.name))
    assert export(model, tmp_path) == 0


def test_a_paddle_file_as_found(published_data: Path, tmp_path: Path) -> None:
    path = published_data / "models/rapidocr_cls.onnx"
    out = tmp_path / "out.onnx"
    flags = ["--size", "48x192", "--preprocessing", "half", "--precision", "fp32"]
    assert main(["export", str(path), "-o", str(out), *flags]) == 0
    images = noise(2, 3, 48, 192)
    logits = run(out, images)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(shares, run(path, images), atol=1e-4)


def test_a_16_bit_file_of_opset_7_as_found(published_data: Path) -> None:
    path = published_data / "models/squeezenet_fp16.onnx"
    model = onnx.load(path)
    classifier = as_classifier(model)
    assert (classifier.classes, opset(model)) == (1000, 13)
    images = 50 * noise(1, 3, 224, 224)
    expected = run(path, images.astype(np.float16)).reshape(1, -1)
    assert run(model, images).argmax() == expected.argmax()
