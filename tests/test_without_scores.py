"""Networks without class scores: exported, primed, adapted by features, answered by name."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import served
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from zotta_edge import AdaptiveModel
from zotta_edge.__main__ import main
from zotta_edge.errors import ZottaError
from zotta_edge.runtime.engine.model_info import read_info

cv2 = pytest.importorskip("cv2")
RNG = np.random.default_rng(0)


def branched(*more: onnx.NodeProto) -> onnx.ModelProto:
    """Two convolutions with BatchNorm, then boxes [n, 6, 16] and an embedding [n, 8] of them."""
    make = helper.make_node
    norm = [f"n.{part}" for part in ("scale", "shift", "mean", "variance")]
    nodes = [
        make("Conv", ["x", "w1"], ["c1"], name="stem/conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        make("BatchNormalization", ["c1", *norm], ["n1"], name="stem/bn"),
        make("Relu", ["n1"], ["r1"]),
        make("Conv", ["r1", "w2"], ["c2"], name="body/conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        make("BatchNormalization", ["c2", *norm], ["n2"], name="body/bn"),
        make("Relu", ["n2"], ["r2"]),
        make("Conv", ["r2", "w3"], ["c3"], name="head/boxes"),
        make("BatchNormalization", ["c3", *(f"h.{part}" for part in norm)], ["n3"], name="head/bn"),
        make("Reshape", ["n3", "rows"], ["boxes"]),
        make("GlobalAveragePool", ["r2"], ["pooled"]),
        make("Flatten", ["pooled"], ["embedding"]),
        *more,
    ]
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (6, 8, 1, 1)}
    arrays = {name: RNG.normal(0, 0.3, shape) for name, shape in weights.items()}
    for prefix, channels in (("", 8), ("h.", 6)):
        for part in norm:
            spread = 1.0 if part in ("n.scale", "n.variance") else 0.0
            arrays[prefix + part] = spread + RNG.normal(0, 0.1, channels)
    tensors = [numpy_helper.from_array(np.float32(value), name) for name, value in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([0, 6, 16]), "rows"))
    graph = helper.make_graph(
        nodes,
        "branched",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["n", 6, 16]),
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 8]),
        ],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scenes(count: int, contrast: float = 1.0) -> NDArray[np.uint8]:
    coarse = np.random.default_rng(1).integers(0, 256, (count, 4, 4, 3))
    grey = 128 + contrast * (coarse - 128)
    return grey.astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network, images of its source, and the exported, primed file."""
    folder = tmp_path_factory.mktemp("branched")
    onnx.save(branched(), folder / "net.onnx")
    np.savez(folder / "source.npz", images=scenes(64))
    np.savez(folder / "dull.npz", images=scenes(48, 0.3))
    out = str(folder / "out.onnx")
    flags = ["--precision", "fp32", "--preprocessing", "half"]
    assert main(["export", str(folder / "net.onnx"), "-o", out, *flags]) == 0
    flags = ["--samples", "48", "--layers", "0-1", "--prime"]
    assert main(["calibrate", out, "--source", str(folder / "source.npz"), *flags]) == 0
    return folder


def test_outputs_keep_their_names_and_values(folder: Path) -> None:
    """All but `embedding`, which every file has already."""
    info = read_info(folder / "out.onnx")
    assert info.outputs == {"boxes": (6, 16), "embedding.output": (8,)}
    assert (info.classes, len(info.layers), len(info.norms)) == (1, 2, 2)
    images = RNG.standard_normal((3, 3, 16, 16), dtype=np.float32)
    expected = ort.InferenceSession(folder / "net.onnx").run(None, {"x": images})
    model = AdaptiveModel.load(folder / "out.onnx", method="none")
    result = model.predict(images)
    for values, name in zip(expected, info.outputs, strict=True):
        np.testing.assert_allclose(result.outputs[name], values, atol=1e-5)


def test_norms_of_a_branch_stay_fixed(folder: Path) -> None:
    inputs = [value.name for value in onnx.load(folder / "out.onnx").graph.input]
    assert inputs == ["image", "stem.scale", "stem.shift", "body.scale", "body.shift"]


@pytest.mark.parametrize("method", ["primed", "moments"])
def test_features_alone_adapt_it(folder: Path, method: str) -> None:
    model = AdaptiveModel.load(folder / "out.onnx", method=method)
    dull, clean = scenes(48, 0.3), scenes(48)
    plain = model.unadapted()
    wanted = plain.predict(clean).outputs["boxes"]
    before = plain.predict(dull).outputs["boxes"]
    for at in range(0, 48, 16):
        result = model.predict(dull[at : at + 16])
    after = model.predict(dull, adapt=False).outputs["boxes"]
    assert result.adapted
    assert model.status()["guard"].get("collapses", 0) == 0
    assert np.square(after - wanted).mean() < 0.75 * np.square(before - wanted).mean()


def test_moments_need_no_priming(folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.onnx")
    flags = ["--precision", "fp32", "--preprocessing", "half"]
    assert main(["export", str(folder / "net.onnx"), "-o", out, *flags]) == 0
    flags = ["--samples", "48", "--layers", "0-1"]
    assert main(["calibrate", out, "--source", str(folder / "source.npz"), *flags]) == 0
    assert AdaptiveModel.load(out).method == "moments"
    assert AdaptiveModel.load(folder / "out.onnx").method == "primed"


@pytest.mark.parametrize("method", ["zotta", "t3a", "bn_adapt"])
def test_methods_that_look_at_scores_are_refused(folder: Path, method: str) -> None:
    with pytest.raises(ZottaError, match=f"no class scores, which {method} looks at"):
        AdaptiveModel.load(folder / "out.onnx", method=method)


def test_adapt_writes_the_outputs(folder: Path, tmp_path: Path, capfd) -> None:
    stream = ["--model", str(folder / "out.onnx"), "--data", str(folder / "dull.npz")]
    assert main(["adapt", *stream, "--output", str(tmp_path / "answers.npz")]) == 0
    stored = np.load(tmp_path / "answers.npz")
    assert stored["names"].tolist() == [str(index) for index in range(48)]
    assert (stored["boxes"].shape, stored["embedding.output"].shape) == ((48, 6, 16), (48, 8))
    assert main(["adapt", *stream, "--output", str(tmp_path / "answers.csv")]) == 1
    assert "its outputs go to an .npz file" in capfd.readouterr().err
    assert main(["adapt", *stream, "--labels", str(tmp_path / "labels.csv")]) == 1
    assert "leave --labels out" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.npz"]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[served.Server]:
    with served.serving("--model", folder / "out.onnx", "--batch-size", "8") as server:
        yield server


def test_the_service_returns_them_by_name(server: served.Server, folder: Path) -> None:
    metadata = server.get("/v2/models/out")
    assert {entry["name"]: entry["shape"] for entry in metadata["outputs"]} == {
        "boxes": [-1, 6, 16],
        "embedding.output": [-1, 8],
    }
    images = scenes(4)
    body, headers = served.infer_body(images, adapt=False)
    reply = server.request("POST", "/v2/models/out/infer", body, headers)
    assert reply.status == 200
    expected = AdaptiveModel.load(folder / "out.onnx").predict(images, adapt=False)
    for entry in reply.json["outputs"]:
        values = np.array(entry["data"], np.float32).reshape(entry["shape"])
        np.testing.assert_allclose(values, expected.outputs[entry["name"]], atol=1e-4)
    ok, encoded = cv2.imencode(".png", images[0])
    assert ok
    refused = server.request("POST", "/v2/models/out/classify", encoded.tobytes(), {})
    assert refused.status == 400
    assert "no class scores" in refused.json["error"]


def test_an_embedding_is_told_from_scores(tmp_path: Path) -> None:
    model = branched()
    del model.graph.output[0]
    onnx.save(model, tmp_path / "net.onnx")
    export = ["export", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "out.onnx")]
    assert main([*export, "--preprocessing", "half"]) == 0
    assert read_info(tmp_path / "out.onnx").classes == 8
    assert main([*export, "--preprocessing", "half", "--no-scores"]) == 0
    info = read_info(tmp_path / "out.onnx")
    assert info.outputs == {"embedding.output": (8,)}
    assert "top1_agreement" not in info.checks


def test_an_output_that_is_no_row_an_image_is_named(tmp_path: Path, capfd) -> None:
    model = branched(helper.make_node("NonZero", ["boxes"], ["found"], name="found"))
    model.graph.output.append(helper.make_tensor_value_info("found", TensorProto.INT64, [3, "k"]))
    onnx.save(model, tmp_path / "net.onnx")
    assert main(["export", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "out.onnx")]) == 1
    assert "the output found" in capfd.readouterr().err
