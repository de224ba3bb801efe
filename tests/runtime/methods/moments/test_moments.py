"""Channel moments: the graph against its equations, and streams that it is and is not for."""

from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from aligned import with_moments
from numpy.typing import NDArray
from onnx import helper

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import IMAGE, LOGITS
from zotta_edge.graph.index import Graph
from zotta_edge.models import embedded
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


def test_the_first_site_gets_the_source_s_moments(found: Path) -> None:
    """A stream of twice the contrast: its channels end where the source has them."""
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
    (seen,) = open_session(model.SerializeToString()).run([output], feeds)
    mean, spread = seen.mean(axis=(0, 2, 3)), seen.std(axis=(0, 2, 3))
    expected = info.moments.mean[: site.channels], np.sqrt(info.moments.variance[: site.channels])
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
    np.testing.assert_allclose(factor[0], np.exp(-0.25 * d), rtol=1e-3)


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
