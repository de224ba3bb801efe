"""Newer rivals against what their papers say of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import toy
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.graph.subgraph import build, live
from zotta_edge.models import embedded
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.methods.eva0 import scale_free_difference
from zotta_edge.runtime.methods.fozo import Fozo
from zotta_edge.runtime.methods.pea.statistics import Gaussian, coloured
from zotta_edge.runtime.methods.pea.views import views
from zotta_edge.runtime.watch.statistics import entropies
from zotta_edge.sessions import open_session

Floats = NDArray[np.float32]
Statistics = Callable[[int, Floats], tuple[Any, Any]]  # norm, hat -> mean, variance


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.build(tmp_path_factory.mktemp("toy") / "toy.onnx")


def load(path: Path, method: str, **settings: Any) -> AdaptiveModel:
    return AdaptiveModel.load(path, Settings(**settings), method=method, threads=1)


def method_of(model: AdaptiveModel) -> Any:
    return model._method


# FOZO


def test_fozo_steps_along_its_perturbation() -> None:
    """P - eta (l+ - l-) / 2 epsilon z, from the losses of the two passes that it made."""
    model = load(embedded.MODEL, "fozo")
    fozo: Fozo = method_of(model)
    z = np.random.default_rng(0).standard_normal(fozo._pass.parameters)
    images = as_batch(list(embedded.digits(16)), model.info.preprocessing)
    losses = []
    for side in (1, -1):
        outputs = fozo._pass(images, side * 0.5 * z)
        losses.append(fozo._loss(outputs, outputs.logits))
    before = model.passes
    answer = model.predict_prepared(images)
    assert (model.passes - before) / 16 == pytest.approx(2)
    rate = 0.7 * 0.08 + 0.1
    np.testing.assert_allclose(
        fozo._prompts, -rate * (losses[0] - losses[1]) / (2 * 0.5) * z, rtol=1e-6
    )
    best = fozo._pass(images, (1, -1)[int(np.argmin(losses))] * 0.5 * z)
    np.testing.assert_array_equal(answer.logits, best.logits)


def test_fozo_looks_less_far_until_the_loss_jumps() -> None:
    fozo: Fozo = method_of(load(embedded.MODEL, "fozo"))
    sizes, rates = [], []
    for loss in [10.0] * 12 + [20.0]:
        fozo._schedule(loss)
        sizes.append(fozo._size)
        rates.append(fozo._rate)
    np.testing.assert_allclose(sizes[:3], [0.45, 0.405, 0.3645])
    assert sizes[11] == 0.2
    assert rates[11] == pytest.approx(1 / 3, abs=0.01)  # where 0.7 eta + 0.1 = eta
    assert (sizes[12], rates[12]) == (0.5, 0.1)


# EVA-0


def test_eva0_does_not_mind_the_scale_of_its_answers() -> None:
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((6, 10))).astype(np.float32)
    assert np.abs(entropies(logits) - entropies(2 * logits)).min() > 0.01
    np.testing.assert_allclose(scale_free_difference(2 * logits, logits), 0, atol=1e-5)
    sharper = logits + 3 * np.eye(10, dtype=np.float32)[logits.argmax(axis=1)]
    assert (scale_free_difference(sharper, logits) < 0).all()


def test_eva0_answers_with_its_two_passes(path: Path) -> None:
    model, images = load(path, "eva0", eva0_perturbation=1e-3), toy.images(16)
    answer = model.predict(images)
    share = model._engine.cone_share
    assert model.passes / 16 == pytest.approx(1 - share + 2 * share)
    plain = model._engine.cone(model._engine.stem(images), {})
    np.testing.assert_allclose(answer.logits, plain.logits, atol=1e-3)


def test_eva0_brings_features_back_and_stays_near_its_anchor(path: Path) -> None:
    """On one batch over and over, drifted: the distance falls, and theta's stays bounded."""
    model, images = load(path, "eva0"), toy.images(64, shift=0.5)
    eva0 = method_of(model)

    def distance() -> float:
        outputs = eva0._in_units(model._engine.cone(model._engine.stem(images), theta()))
        return float(eva0._alignment(outputs))

    def theta() -> dict[str, Floats]:
        affines: dict[str, Floats] = eva0._parameters.affines(eva0._theta)
        return affines

    before = distance()
    for _ in range(40):
        model.predict(images)
    assert distance() < 0.9 * before
    own = Settings()
    assert model.status()["distance"] <= own.eva0_rate / own.eva0_anchor


# statistics of BatchNorm


@pytest.fixture(scope="module")
def batch_norm(
    tmp_path_factory: pytest.TempPathFactory, residual_net: onnx.ModelProto
) -> tuple[Path, Path]:
    """A BatchNorm net as it came, and exported in fp32."""
    folder = tmp_path_factory.mktemp("norms")
    onnx.save(residual_net, folder / "source.onnx")
    options = ExportOptions(precision="fp32", mean=(0.5,), std=(0.5,))
    export_model(str(folder / "source.onnx"), folder / "net.onnx", options)
    return folder / "source.onnx", folder / "net.onnx"


def images_for(model: AdaptiveModel, count: int) -> Floats:
    p = model.info.preprocessing
    noise = np.random.default_rng(0).integers(0, 256, (count, p.height, p.width, 3))
    return as_batch(list(noise.astype(np.uint8)), p)


def by_hand(source: Path, images: Floats, statistics: Statistics) -> Floats:
    """The net with its BatchNorms computed in NumPy, node by node."""
    model = onnx.load(source)
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    feeds: dict[str, Any] = {model.graph.input[0].name: images}
    for index, norm in enumerate(norms):
        (x,) = _run(model, [norm.input[0]], feeds)
        scale, shift, mean, variance = (
            weights[name][:, None, None] for name in list(norm.input)[1:]
        )
        hat = (x - mean) / np.sqrt(variance + 1e-5)
        own_mean, own_variance = statistics(index, hat)
        feeds[norm.output[0]] = (hat - own_mean) / np.sqrt(own_variance) * scale + shift
    logits: Floats = _run(model, [model.graph.output[0].name], feeds)[0]
    return logits


def _run(model: onnx.ModelProto, outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
    """What the nodes between the tensors given and the outputs compute."""
    nodes = live(model.graph.node, outputs, set(feeds))
    used = {name for node in nodes for name in node.input} & set(feeds)
    declared = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in {*used, *outputs}
    }
    part = build(model, nodes, sorted(used), outputs, declared)
    session = open_session(part.SerializeToString(), optimize=False)
    return list(session.run(outputs, {name: np.float32(feeds[name]) for name in used}))


def instance(hat: Floats) -> tuple[Any, Any]:
    return hat.mean(axis=(2, 3), keepdims=True), hat.var(axis=(2, 3), keepdims=True)


def test_alpha_bn_mixes_source_and_batch(batch_norm: tuple[Path, Path]) -> None:
    model = load(batch_norm[1], "alpha_bn", alpha_bn=0.3)
    images = images_for(model, 8)

    def mixed(_: int, hat: Floats) -> tuple[Any, Any]:
        axes = (0, 2, 3)
        mean, variance = hat.mean(axis=axes, keepdims=True), hat.var(axis=axes, keepdims=True)
        return 0.3 * mean, 0.7 + 0.3 * (variance + 1e-5)

    expected = by_hand(batch_norm[0], images, mixed)
    np.testing.assert_allclose(model.predict(images).logits, expected, rtol=1e-2, atol=1e-3)
    assert np.abs(expected - load(batch_norm[1], "none").predict(images).logits).max() > 0.05


def test_alpha_bn_takes_ttns_alphas_by_channel(
    batch_norm: tuple[Path, Path], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    info = load(batch_norm[1], "none").info
    alphas = {norm.name: rng.uniform(size=norm.channels).astype(np.float32) for norm in info.norms}
    last = info.norms[-1].name.rpartition(".")[2]  # another norm's name ends in it
    np.savez(tmp_path / "alphas.npz", **{last: np.ones(1, np.float32)}, **alphas)
    model = load(batch_norm[1], "alpha_bn", alpha_file=str(tmp_path / "alphas.npz"))
    images = images_for(model, 8)

    def mixed(index: int, hat: Floats) -> tuple[Any, Any]:
        a = alphas[info.norms[index].name][:, None, None]
        axes = (0, 2, 3)
        mean, variance = hat.mean(axis=axes, keepdims=True), hat.var(axis=axes, keepdims=True)
        return a * mean, (1 - a) + a * (variance + 1e-5) + a * (1 - a) * mean**2

    expected = by_hand(batch_norm[0], images, mixed)
    np.testing.assert_allclose(model.predict(images).logits, expected, rtol=1e-2, atol=1e-3)


def test_alphas_of_another_model_are_refused(batch_norm: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "alphas.npz", other=np.zeros(4, np.float32))
    with pytest.raises(ZottaError, match=r"holds no alphas of this model.*benchmarks/ttn.py"):
        load(batch_norm[1], "alpha_bn", alpha_file=str(tmp_path / "alphas.npz"))


def test_leantta_weighs_an_image_by_its_distance(batch_norm: tuple[Path, Path]) -> None:
    """Its four equations, image by image; a batch is as many images."""
    model = load(batch_norm[1], "leantta", leantta_tau=0.8, leantta_power=2.0)
    images = images_for(model, 6)

    def blended(_: int, hat: Floats) -> tuple[Any, Any]:
        mean, variance = instance(hat)
        mean, variance = 0.2 * mean, 0.8 + 0.2 * variance
        d = (1 - np.exp(-np.square(mean).sum(axis=1, keepdims=True))) ** 2.0
        return (1 - d) * mean, d + (1 - d) * variance + 1e-5

    expected = by_hand(batch_norm[0], images, blended)
    together = model.predict(images).logits
    np.testing.assert_allclose(together, expected, rtol=1e-2, atol=1e-3)
    apart = np.concatenate([model.predict(image[None]).logits for image in images])
    np.testing.assert_allclose(apart, together, atol=1e-4)
    assert np.abs(expected - load(batch_norm[1], "none").predict(images).logits).max() > 0.01


def test_unmix_tns_mixes_components_and_moves_the_near_ones(batch_norm: tuple[Path, Path]) -> None:
    model = load(batch_norm[1], "unmix_tns", unmix_components=5)
    images = images_for(model, 8)
    state = {name: array.copy() for name, array in model.arrays().items()}
    means, variances = (state[f"method.{name}"] for name in ("means", "variances"))
    moved = [means.copy(), variances.copy()]
    place = 0

    def mixed(_: int, hat: Floats) -> tuple[Any, Any]:
        nonlocal place
        own = slice(place, place + hat.shape[1])
        place += hat.shape[1]
        mean, variance = (x[:, :, 0, 0] for x in instance(hat))  # [batch, C]
        units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (mean, means[:, own])]
        p = np.exp(units[0] @ units[1].T / 0.07)
        p = (p / p.sum(axis=1, keepdims=True))[..., None]  # [batch, K, 1]
        for values, x in zip(moved, (mean, variance), strict=True):
            pull = (p * (x[:, None] - values[None, :, own])).mean(axis=0)
            values[:, own] += (1 - 0.1 ** (8 / 64)) * pull
        each = (1 - p) * means[None, :, own] + p * mean[:, None]
        spread = (1 - p) * variances[None, :, own] + p * variance[:, None]
        total = spread.mean(axis=1) + np.square(each).mean(axis=1) - each.mean(axis=1) ** 2
        return each.mean(axis=1)[..., None, None], total[..., None, None] + 1e-5

    expected = by_hand(batch_norm[0], images, mixed)
    np.testing.assert_allclose(model.predict(images).logits, expected, rtol=1e-2, atol=2e-3)
    after = model.arrays()
    np.testing.assert_allclose(after["method.means"], moved[0], atol=1e-4)
    np.testing.assert_allclose(after["method.variances"], moved[1], atol=1e-4)


def test_unmix_tns_starts_as_the_source(batch_norm: tuple[Path, Path]) -> None:
    """The components' mixture has about the source's mean 0 and variance 1."""
    model = load(batch_norm[1], "unmix_tns", unmix_components=200)
    means, variances = (model.arrays()[f"method.{name}"] for name in ("means", "variances"))
    assert np.abs(means.mean(axis=0)).max() < 1e-5
    total = variances.mean(axis=0) + means.var(axis=0)
    assert total.mean() == pytest.approx(1, abs=0.05)


# PEA


def test_pea_gives_rows_the_sources_mean_and_covariance() -> None:
    rng = np.random.default_rng(0)
    mix, other = rng.standard_normal((2, 6, 6))
    rows = (rng.standard_normal((4000, 6)) @ mix + 3).astype(np.float32)
    source = Gaussian.of((rng.standard_normal((4000, 6)) @ other - 1).astype(np.float32))
    stream = Gaussian.of(rows)
    aligned = Gaussian.of(coloured(rows, stream, source, 1.0))
    np.testing.assert_allclose(aligned.mean, source.mean, atol=1e-3)
    np.testing.assert_allclose(aligned.covariance, source.covariance, rtol=1e-2, atol=1e-2)
    half = coloured(rows, stream, source, 0.5)
    np.testing.assert_allclose(half, (rows + coloured(rows, stream, source, 1.0)) / 2, atol=1e-3)
    np.testing.assert_allclose(coloured(rows, stream, source, 0.0), rows, atol=1e-4)


def test_pea_passes_twice_and_weighs_blocks_from_0_to_1(token_statistics: Path) -> None:
    model = load(embedded.MODEL, "pea", pea_statistics=str(token_statistics))
    images = as_batch(list(embedded.digits(32)), model.info.preprocessing)
    model.predict_prepared(images)
    assert model.passes / 32 == pytest.approx(2)
    weights = model.status()["weights"]
    assert len(weights) == len(model.info.layers) - 1  # not the norm before the classifier
    assert (min(weights), max(weights)) == (0, 1)
    three = load(embedded.MODEL, "pea", pea_statistics=str(token_statistics), pea_views=3)
    three.predict_prepared(images)
    assert three.passes / 32 == pytest.approx(6)


def test_pea_block_by_block_is_the_model(token_statistics: Path) -> None:
    model = load(embedded.MODEL, "pea", pea_statistics=str(token_statistics))
    images = as_batch(list(embedded.digits(8)), model.info.preprocessing)
    plain = load(embedded.MODEL, "none").predict_prepared(images).logits
    blocks = method_of(model)._blocks
    np.testing.assert_allclose(blocks(images, lambda _, rows: rows), plain, atol=1e-4)


def test_pea_asks_for_its_statistics(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", nothing=np.zeros(3))
    with pytest.raises(ZottaError, match="holds no token statistics of this model"):
        load(embedded.MODEL, "pea", pea_statistics=str(tmp_path / "other.npz"))


def test_views_of_a_batch() -> None:
    images = np.arange(2 * 3 * 20 * 20, dtype=np.float32).reshape(2, 3, 20, 20)
    same, crop, mirror = views(images, 3, "NCHW")
    np.testing.assert_array_equal(same, images)
    np.testing.assert_array_equal(mirror, images[..., ::-1])
    assert crop.shape == images.shape
    np.testing.assert_allclose(crop[..., 0, 0], images[..., 1, 1], rtol=0.02)
    np.testing.assert_allclose(crop.mean(), images.mean(), rtol=1e-3)
    last = views(np.moveaxis(images, 1, 3), 2, "NHWC")[1]
    np.testing.assert_allclose(np.moveaxis(last, 3, 1), crop, rtol=1e-5)
