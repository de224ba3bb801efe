"""Channel moments: the graph against its equations, and streams that it is and is not for."""

import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from aligned import with_moments
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import IMAGE, LOGITS
from zotta_edge.graph.index import Graph
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.methods.moments.graph import (
    INSTANCE,
    KEEP,
    NOISE,
    RUNNING,
    WEIGHTS,
    add_moments,
)
from zotta_edge.runtime.methods.moments.passes import MomentPasses
from zotta_edge.runtime.methods.moments.running import Share
from zotta_edge.runtime.methods.moments.sparse import sparse_copy
from zotta_edge.sessions import open_session

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moments") / "aligned.onnx"
    return with_moments(embedded.RESNET, path, embedded.digits(128))


@pytest.fixture(scope="module", params=["kept", "folded"])
def found(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    residual_net: onnx.ModelProto,
) -> Path:
    """A network whose BatchNorms were kept, or folded into its convolutions."""
    folder = tmp_path_factory.mktemp("found")
    onnx.save(residual_net, folder / "source.onnx")
    fold = request.param == "folded"
    options = ExportOptions(precision="fp32", mean=(0.5,), std=(0.5,), fold=fold)
    export_model(str(folder / "source.onnx"), folder / "fp32.onnx", options)
    size = read_info(folder / "fp32.onnx").preprocessing
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (32, size.height, size.width, 3), np.uint8)
    return with_moments(folder / "fp32.onnx", folder / "aligned.onnx", images)


def prepared(path: Path, count: int, seed: int = 1) -> Floats:
    size = read_info(path).preprocessing
    rng = np.random.default_rng(seed)
    return as_batch(rng.integers(0, 256, (count, size.height, size.width, 3), np.uint8), size)


def rewritten(path: Path) -> onnx.ModelProto:
    model, info = onnx.load(path), read_info(path)
    assert info.moments is not None
    add_moments(model, info.moments, info)
    return model


def test_without_noise_taken_out_nothing_changes(found: Path) -> None:
    images = prepared(found, 6)
    plain = open_session(found).run([LOGITS], {IMAGE: images})[0]
    moved = open_session(rewritten(found).SerializeToString()).run([LOGITS], {IMAGE: images})[0]
    np.testing.assert_allclose(moved, plain, atol=2e-5)


def test_folded_networks_are_aligned_behind_every_convolution(found: Path) -> None:
    moments = read_info(found).moments
    assert moments is not None
    convolutions = [node for node in onnx.load(found).graph.node if node.op_type == "Conv"]
    assert len(moments.sites) == len(convolutions)


def test_the_first_site_comes_part_of_the_way_to_the_source_s_moments(found: Path) -> None:
    """A stream of twice the contrast; what one site leaves, later ones see."""
    model, info = rewritten(found), read_info(found)
    assert info.moments is not None
    site = info.moments.sites[0]
    output = f"{site.tensor}.aligned"
    if site.norm:
        norm = next(norm for norm in info.norms if norm.name == site.norm)
        graph = Graph(model)
        products = [n for n in graph.nodes if n.op_type == "Mul" and site.tensor in n.input]
        product = next(n for n in products if len(set(n.input)) == 2)  # not the square
        output = next(n.output[0] for n in graph.consumers[product.output[0]])
        scale, shift = (info.affines[name].reshape(-1) for name in (norm.scale, norm.shift))
    model.graph.output.append(helper.make_empty_tensor_value_info(output))
    images = 2 * prepared(found, 16) + 0.5
    width = 2 * int(info.moments.ends[-1])
    feeds = {
        IMAGE: images,
        RUNNING: np.zeros((1, width), np.float32),
        KEEP: np.zeros(1, np.float32),
        WEIGHTS: np.full((16, 1), 1 / 16, np.float32),
        NOISE: np.zeros(1, np.float32),
    }
    seen, instance = open_session(model.SerializeToString()).run([output, INSTANCE], feeds)
    mean, spread = seen.mean(axis=(0, 2, 3)), seen.std(axis=(0, 2, 3))
    m, squares = np.split(instance.mean(axis=0)[: 2 * site.channels].astype(np.float64), 2)
    source = info.moments.mean[: site.channels], info.moments.variance[: site.channels]
    share = info.moments.share
    factor = (source[1] / (squares - m**2)) ** (share / 2)
    expected = (
        source[0] + (1 - share) * (m - source[0]) * factor,
        np.sqrt(squares - m**2) * factor,
    )
    if site.norm:
        expected = scale * expected[0] + shift, np.abs(scale) * expected[1]
    np.testing.assert_allclose(mean, expected[0], atol=1e-3)
    np.testing.assert_allclose(spread, expected[1], rtol=0.02, atol=1e-3)


def test_the_shrinkage_is_the_equation_s(found: Path) -> None:
    """At a noise between none and all, the first site moves by exactly l of the way."""
    info, images = read_info(found), 1.5 * prepared(found, 8)
    source = info.moments
    assert source is not None
    session = open_session(rewritten(found).SerializeToString())
    instance = session.run([INSTANCE], {IMAGE: images})[0].astype(np.float64)
    channels = source.sites[0].channels
    m, squares = np.split(instance.mean(axis=0)[: 2 * channels], 2)
    variance = source.variance[:channels]
    d = np.log((squares - m**2) / variance)
    e = np.square(m - source.mean[:channels]).dot(1 / variance) + d @ d
    noise = 0.5 * e / source.energy[0]
    model = rewritten(found)
    half = next(n for n in model.graph.node if n.op_type == "Exp" and _of(n, source.sites[0]))
    model.graph.output.append(helper.make_empty_tensor_value_info(half.output[0]))
    feeds = {
        IMAGE: images,
        KEEP: np.zeros(1, np.float32),
        WEIGHTS: np.full((8, 1), 1 / 8, np.float32),
        NOISE: np.array([noise], np.float32),
    }
    (factor,) = open_session(model.SerializeToString()).run([half.output[0]], feeds)
    np.testing.assert_allclose(factor[0], np.exp(-0.25 * source.share * d), rtol=1e-3)


def _of(node: onnx.NodeProto, site: object) -> bool:
    return str(node.output[0]).startswith(f"{site.tensor}.moments")  # type: ignore[attr-defined]


def accuracy(path: Path, images: NDArray[np.uint8], batch: int, method: str) -> float:
    model = AdaptiveModel.load(path, Settings(filters=False), method, threads=1)
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    answers = np.concatenate([model.predict(part).labels for part in parts])
    clean = AdaptiveModel.load(path, method="none", threads=1)
    truth = np.concatenate([clean.predict(part).labels for part in np.split(DIGITS, 4)])
    return float((answers == truth).mean())


DIGITS = embedded.digits(128)


@pytest.mark.parametrize("batch", [1, 32])
def test_a_haze_is_taken_back_from_the_first_images_on(aligned: Path, batch: int) -> None:
    haze = DIGITS // 4 + 128
    gained = accuracy(aligned, haze, batch, "moments") - accuracy(aligned, haze, batch, "none")
    assert gained > 0.05, gained


def test_filters_are_tried_where_the_moments_are_off(aligned: Path) -> None:
    """A blur hardly shows in the first site's means, and it is the deeper ones that tell."""
    images = embedded.digits(128)
    blurred = np.stack([cv2.blur(image, (5, 5)) for image in images]).reshape(images.shape)
    model = AdaptiveModel.load(aligned, method="moments")
    before = model.passes
    model.predict(images[:64])
    assert model.passes - before < 64 * 2.1  # none is tried on the source
    model.reset()
    before = model.passes
    model.predict(blurred[:64])
    assert model.passes - before > 64 * 2 + 59


def test_the_source_is_left_alone(aligned: Path) -> None:
    assert accuracy(aligned, DIGITS, 16, "moments") > 0.99


def test_a_settled_stream_is_answered_as_an_unsettled_one(found: Path) -> None:
    """The alignment is the same, in the weights or in the pass."""
    engine = Engine.open(found, chosen=(), threads=1)
    passes, images = MomentPasses(engine), 1.5 * prepared(found, 8)
    begun, unseen = passes.begin(images), Share(1.0, np.zeros(8), 0.0)
    source = engine.info.moments
    assert source is not None
    zeros = np.zeros((1, 2 * int(source.ends[-1])), np.float32)
    plain, instance = passes.finish(begun, zeros, unseen)
    running, noise = instance.mean(axis=0, keepdims=True), 0.05
    within, moments = passes.finish(begun, running, unseen, noise)
    cone = passes.settle(source, running, noise)
    written, sparse = passes.finish_settled(begun, cone)
    assert np.abs(within.logits - plain.logits).max() > 1e-2
    np.testing.assert_allclose(written.logits, within.logits, atol=1e-4)
    spread = np.sqrt(np.mean(np.square(moments)))  # the images are noise, of which a ninth is seen
    assert np.sqrt(np.mean(np.square(sparse - moments))) < 0.3 * spread


@pytest.mark.parametrize("pads", ["of its own", "before it", "reflected"])
def test_a_sparse_copy_is_every_third_pixel_of_its_convolution(pads: str) -> None:
    inner, outer = ([1] * 4, False) if pads == "of its own" else ([0] * 4, True)
    conv = helper.make_node("Conv", ["padded" if outer else "x", "w"], ["y"], pads=inner)
    widths = numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "widths")
    mode = "reflect" if pads == "reflected" else "constant"
    pad = [helper.make_node("Pad", ["x", "widths"], ["padded"], mode=mode)] if outer else []
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.normal(size=(4, 2, 3, 3)).astype(np.float32), "w")
    free = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y")]
    body = helper.make_graph([*pad, conv], "g", free[:1], free[1:], [weights, widths])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    copy = sparse_copy(Graph(model), "y", 14 * 14)
    assert copy is not None
    assert copy.input[0] == ("padded" if pads == "reflected" else "x")
    model.graph.node.append(copy)
    model.graph.output.append(helper.make_empty_tensor_value_info(copy.output[0]))
    images = rng.normal(size=(3, 2, 14, 14)).astype(np.float32)
    whole, some = open_session(model.SerializeToString()).run(None, {"x": images})
    np.testing.assert_allclose(some, whole[:, :, ::3, ::3], atol=1e-5)


def test_a_long_stream_settles_and_goes_on_after_a_restart(aligned: Path, tmp_path: Path) -> None:
    haze = DIGITS // 4 + 128
    settings = Settings(filters=False, moment_settled=64)
    model = AdaptiveModel.load(aligned, settings, "moments", threads=1)
    for part in np.split(haze[:96], 6):
        model.predict(part)
    assert model.status()["settled"]
    model.save_state(tmp_path / "site.state")
    again = AdaptiveModel.load(aligned, settings, "moments", threads=1)
    again.load_state(tmp_path / "site.state")
    assert again.status()["settled"]
    for part in np.split(haze[96:], 2):
        assert np.array_equal(model.predict(part).logits, again.predict(part).logits)
    model.reset()
    assert not model.status()["settled"]


def test_a_still_scene_is_left_alone(aligned: Path) -> None:
    """Frames that repeat are one image, and one image is no world."""
    model = AdaptiveModel.load(aligned, Settings(filters=False), "moments", threads=1)
    plain = AdaptiveModel.load(aligned, method="none", threads=1)
    frames = np.repeat(DIGITS[:1], 64, axis=0)
    same = model.predict(frames).labels == plain.predict(frames).labels
    assert same.all()


def test_what_was_not_measured_is_asked_for() -> None:
    with pytest.raises(ZottaError, match="channel moments: run `zotta-edge calibrate") as caught:
        AdaptiveModel.load(embedded.RESNET, method="moments")
    assert "\n" not in str(caught.value)


def test_damaged_moments_are_refused(aligned: Path, tmp_path: Path) -> None:
    model = onnx.load(aligned)
    for entry in model.metadata_props:
        if entry.key == "zotta.moments.values":
            entry.value = entry.value[:-8]
    onnx.save(model, tmp_path / "damaged.onnx")
    with pytest.raises(ZottaError, match="damaged"):
        read_info(tmp_path / "damaged.onnx")


@pytest.mark.parametrize(("given", "share"), [(None, 0.5), (0.25, 0.25), (0.0, None), (2, None)])
def test_the_share_that_a_site_takes_back_is_the_file_s(
    aligned: Path, tmp_path: Path, given: float | None, share: float | None
) -> None:
    """Files from before it was measured take back half."""
    model = onnx.load(aligned)
    entry = next(entry for entry in model.metadata_props if entry.key == "zotta.moments")
    plain = json.loads(entry.value) | {"share": given}
    entry.value = json.dumps({name: x for name, x in plain.items() if x is not None})
    onnx.save(model, tmp_path / "model.onnx")
    if share is None:
        with pytest.raises(ZottaError, match="damaged"):
            read_info(tmp_path / "model.onnx")
    else:
        moments = read_info(tmp_path / "model.onnx").moments
        assert moments is not None
        assert moments.share == share
