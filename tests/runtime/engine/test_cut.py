"""Stem and cone: together they are the uncut model, and they hold its weights once."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import toy
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import (
    IMAGE,
    Floats,
    Layer,
    ModelInfo,
    Norm,
    Preprocessing,
    Recipe,
    to_metadata,
)
from zotta_edge.runtime.engine.cut import Halves, cut
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.sessions import open_session


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.build(tmp_path_factory.mktemp("toy") / "toy.onnx")


def _moved(engine: Engine, rows: int, seed: int = 1) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    norms = [norm for layer in engine.chosen for norm in engine.info.layers[layer].norms]
    names = [name for norm in norms for name in (norm.scale, norm.shift)]
    source = engine.info.affines
    return {
        name: source[name] + rng.normal(0, 0.1, (rows, *source[name].shape[1:])).astype(np.float32)
        for name in names
    }


def _uncut(path: Path, images: Floats, affines: dict[str, Floats]) -> Outputs:
    session = open_session(path, threads=1)
    names = [tensor.name for tensor in session.get_outputs()]
    values = dict(zip(names, session.run(names, {IMAGE: images, **affines}), strict=True))
    features = [values[f"feature.{i}"] for i in range(sum(n.startswith("feature.") for n in names))]
    return Outputs(values["logits"], tuple(features), values["embedding"])


def _assert_equal(found: Outputs, expected: Outputs, atol: float = 0.0) -> None:
    np.testing.assert_allclose(found.logits, expected.logits, atol=atol, rtol=0)
    np.testing.assert_allclose(found.embedding, expected.embedding, atol=atol, rtol=0)
    assert len(found.features) == len(expected.features)
    for one, other in zip(found.features, expected.features, strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=0)


@pytest.mark.parametrize("chosen", [(0,), (1, 2), (3,), (0, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("batch", [1, 5])
def test_equals_the_uncut_model(model: Path, chosen: tuple[int, ...], batch: int) -> None:
    engine, images = Engine.open(model, chosen=chosen, threads=1), toy.images(batch)
    stem = engine.stem(images)
    for rows in (1, batch):
        affines = _moved(engine, rows)
        _assert_equal(engine.cone(stem, affines), _uncut(model, images, affines))
    _assert_equal(engine.cone(stem, {}), _uncut(model, images, {}))


def _load(half: bytes | None) -> onnx.GraphProto:
    assert half
    content = onnx.load_from_string(half)
    onnx.checker.check_model(content, full_check=False)
    return content.graph


def test_weights_are_held_once(model: Path) -> None:
    halves = cut(model.read_bytes(), (1, 2), "toy")
    stem, cone = _load(halves.stem), _load(halves.cone)
    whole = {tensor.name for tensor in onnx.load(model).graph.initializer}
    in_stem, in_cone = ({tensor.name for tensor in g.initializer} for g in (stem, cone))
    assert in_stem | in_cone == whole
    assert not in_stem & in_cone
    assert {tensor.name for tensor in cone.input} == {
        "x.1",
        "hat.1",
        *(f"blocks.{layer}.norm.{part}" for layer in (1, 2) for part in ("scale", "shift")),
    }


def test_the_cut_is_reproducible(model: Path) -> None:
    first, second = (cut(model.read_bytes(), (1, 2), "toy") for _ in range(2))
    assert first == second


def test_nodes_nobody_needs_are_dropped(model: Path, tmp_path: Path) -> None:
    """ONNX Runtime would execute them, whichever outputs one asks for."""
    content = onnx.load(model)
    content.graph.node.append(helper.make_node("Softmax", ["logits"], ["probabilities"]))
    content.graph.output.append(helper.make_empty_tensor_value_info("probabilities"))
    halves = cut(content.SerializeToString(), (1, 2), "toy")
    assert "Softmax" not in {node.op_type for node in _load(halves.cone).node}


def test_no_node_before_the_affines(tmp_path: Path) -> None:
    """The first norm reads the image itself: there is no stem at all."""
    path = _write(tmp_path / "direct.onnx", [helper.make_node("Identity", ["moved"], ["x"])])
    assert cut(path.read_bytes(), (0,), "direct").stem is None
    engine = Engine.open(path, chosen=(0,))
    assert engine.cone_share == 1.0
    images, affines = toy.images(3), _moved(engine, 3)
    _assert_equal(engine.cone(engine.stem(images), affines), _uncut(path, images, affines))
    assert engine.passes == pytest.approx(3)


def test_a_subgraph_that_captures_an_affine_is_in_the_cone(tmp_path: Path) -> None:
    captured = [helper.make_node("Mul", ["image", "norm.scale"], ["inner"])]
    nodes = [
        helper.make_node("Relu", ["image"], ["early"]),
        helper.make_node("ReduceMax", ["early"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "zero"], ["positive"]),
        helper.make_node(
            "If",
            ["positive"],
            ["x"],
            then_branch=_branch("then", captured),
            else_branch=_branch("else", [helper.make_node("Identity", ["early"], ["inner"])]),
        ),
    ]
    path = _write(tmp_path / "branches.onnx", nodes)
    halves = cut(path.read_bytes(), (0,), "branches")
    assert [node.op_type for node in _load(halves.stem).node] == ["Relu", "ReduceMax", "Greater"]
    assert {tensor.name for tensor in _load(halves.cone).input} == {
        *("early", "image", "positive", "norm.scale", "norm.shift")
    }
    engine = Engine.open(path, chosen=(0,))
    affines = _moved(engine, 1)
    for images in (toy.images(2), -np.abs(toy.images(2))):
        _assert_equal(engine.cone(engine.stem(images), affines), _uncut(path, images, affines))


def test_a_batch_that_is_not_the_first_axis(tmp_path: Path) -> None:
    """Sequence-first tensors cross the cut as well as any."""
    nodes = [
        helper.make_node("Transpose", ["image"], ["turned"], perm=[1, 0, 2, 3]),
        helper.make_node("Transpose", ["moved"], ["swapped"], perm=[1, 0, 2, 3]),
        helper.make_node("Add", ["swapped", "turned"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["x"], perm=[1, 0, 2, 3]),
    ]
    path = _write(tmp_path / "turned.onnx", nodes)
    turned = next(
        t for t in _load(cut(path.read_bytes(), (0,), "turned").cone).input if t.name == "turned"
    )
    axes = turned.type.tensor_type.shape.dim
    assert [axis.dim_param or axis.dim_value for axis in axes] == [1, "batch", 8, 8]
    engine = Engine.open(path, chosen=(0,))
    images, affines = toy.images(4), _moved(engine, 4)
    _assert_equal(engine.cone(engine.stem(images), affines), _uncut(path, images, affines))


def _branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info("inner")])


def _write(path: Path, nodes: list[onnx.NodeProto]) -> Path:
    """moved = image * scale + shift, then `nodes` up to `x`, its mean, and the mean's negative."""
    norm = Norm("norm", 1, "map")
    layer = Layer("layer", "feature.0", "x", "map", 1, (norm,))
    affines = {norm.scale: np.full((1, 1, 1, 1), 2.0, np.float32)}
    affines[norm.shift] = np.full((1, 1, 1, 1), 0.5, np.float32)
    weights = affines | {"zero": np.zeros((), np.float32)}

    def declare(name: str, *axes: object) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, axes)

    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["image", "norm.scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "norm.shift"], ["moved"]),
            *nodes,
            helper.make_node("ReduceMean", ["x"], ["feature.0"], axes=[2, 3], keepdims=0),
            helper.make_node("Identity", ["feature.0"], ["embedding"]),
            helper.make_node("Neg", ["embedding"], ["logits"]),
        ],
        "small",
        [declare("image", "batch", 1, 8, 8), *(declare(name, "n", 1, 1, 1) for name in affines)],
        [declare(name, "batch", 1) for name in ("logits", "feature.0", "embedding")],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    info = ModelInfo(
        Preprocessing(8, 8, (0.5,), (0.5,)),
        (layer,),
        Recipe("fp32", "none", "any", "test"),
        affines,
        1,
    )
    for key, value in to_metadata(info).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return path


def test_refusals(model: Path) -> None:
    content = model.read_bytes()
    with pytest.raises(ZottaError, match="has layers 0 to 3, no layer 4"):
        cut(content, (4,), "toy.onnx")
    with pytest.raises(ZottaError, match=r"toy\.onnx is not an ONNX model, or is damaged"):
        cut(content[:2000], (1,), "toy.onnx")
    missing = onnx.load(model)
    del missing.graph.output[2]
    with pytest.raises(ZottaError, match=r"toy\.onnx does not match .* no output feature\.1"):
        cut(missing.SerializeToString(), (1,), "toy.onnx")


PRECISIONS = ("fp32", "int8", "fp8")


@pytest.fixture(scope="module", params=PRECISIONS)
def deit(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    source = shared_data / "deit-tiny" / "deit_tiny_fp32.onnx"
    return _export(source, tmp_path_factory.mktemp("deit") / "deit.onnx", request.param)


@pytest.fixture(scope="module", params=PRECISIONS)
def resnet(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    source = shared_data / "cifar10-rn26-gn" / "cifar10_rn26_gn.onnx"
    return _export(source, tmp_path_factory.mktemp("rn26") / "rn26.onnx", request.param)


def _export(source: Path, output: Path, precision: Any) -> Path:
    from zotta_edge.export.pipeline import ExportOptions, export_model

    export_model(str(source), output, ExportOptions(precision=precision))
    return output


def _assert_exact(path: Path, chosen: tuple[int, ...]) -> None:
    """fp32 would do with 1e-5; measured: all precisions agree to the last bit."""
    engine = Engine.open(path, chosen=chosen, threads=1)
    axes = (engine.info.preprocessing.channels, *_sides(engine.info))
    images = np.random.default_rng(0).normal(0, 1, (3, *axes)).astype(np.float32)
    affines = _moved(engine, 3)
    _assert_equal(engine.cone(engine.stem(images), affines), _uncut(path, images, affines))
    assert _size(cut(path.read_bytes(), chosen, "")) < 1.02 * path.stat().st_size


def _sides(info: ModelInfo) -> tuple[int, int]:
    return info.preprocessing.height, info.preprocessing.width


def _size(halves: Halves) -> int:
    return len(halves.stem or b"") + len(halves.cone)


def test_a_real_vision_transformer(deit: Path) -> None:
    _assert_exact(deit, (3, 4, 5))


@pytest.mark.parametrize("chosen", [(0,), (1, 2), (3,)])
def test_a_real_resnet(resnet: Path, chosen: tuple[int, ...]) -> None:
    _assert_exact(resnet, chosen)


def test_counted_passes_are_the_time_they_take(deit: Path) -> None:
    """DeiT-Ti, layers 3-5, k = 5: one stem and eleven cones against plain inference, in CPU time.

    CPU time on one thread, and the best of many interleaved rounds: the machine may be busy, and
    then it takes more of them until each part has had a good one.
    """
    engine, plain = (Engine.open(deit, chosen=chosen, threads=1) for chosen in ((3, 4, 5), ()))
    images = np.random.default_rng(0).normal(0, 1, (4, 3, 224, 224)).astype(np.float32)
    stem = engine.stem(images)
    best = np.full(3, np.inf)
    counted = (1 - engine.cone_share) + 11 * engine.cone_share
    for _ in range(60):
        times = [
            _seconds(lambda: plain.cone(plain.stem(images), {})),
            _seconds(lambda: engine.stem(images)),
            _seconds(lambda: engine.cone(stem, {})),
        ]
        best = np.minimum(best, times)
        whole, once, repeated = best
        taken = (once + 11 * repeated) / whole
        if counted == pytest.approx(taken, rel=0.15):
            break
    assert counted == pytest.approx(taken, rel=0.15)
    assert 8.0 < counted < 8.7


def _seconds(run: Any) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
