"""Each way to adapt against a property that is known of it."""

import sys
from pathlib import Path
from typing import Any

import nets
import numpy as np
import onnx
import pytest
import torch
import toy
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.methods import lame
from zotta_edge.runtime.methods.foa.strategy import Strategy
from zotta_edge.runtime.methods.registry import METHODS
from zotta_edge.runtime.methods.zoa import method as zoa
from zotta_edge.runtime.methods.zoa.bank import Bank
from zotta_edge.runtime.methods.zoa.domain import divergence
from zotta_edge.runtime.watch.statistics import entropies, log_softmax
from zotta_edge.runtime.zeroth.estimator import draw
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.parameters import Parameters

Floats = NDArray[np.float32]
SETTINGS = Settings()
BATCH_NORM = ("bn_adapt", "alpha_bn", "leantta", "unmix_tns")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.build(tmp_path_factory.mktemp("toy") / "toy.onnx")


def load(path: Path, method: str, **settings: Any) -> AdaptiveModel:
    return AdaptiveModel.load(path, Settings(**settings), method=method, threads=1)


def outputs(model: AdaptiveModel, images: Floats) -> Outputs:
    return model._engine.cone(model._engine.stem(images), {})


# LAME


def test_lame_changes_no_features(path: Path) -> None:
    model, images = load(path, "lame"), toy.images(32)
    before = outputs(model, images)
    answer = model.predict(images)
    after = outputs(model, images)
    for one, other in zip(before.features, after.features, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(before.embedding, after.embedding)
    assert np.abs(answer.probabilities - np.exp(log_softmax(before.logits))).max() > 0.01
    assert not answer.adapted


def test_lame_has_nothing_to_say_about_one_image(path: Path) -> None:
    images = toy.images(1)
    plain, alone = (load(path, name).predict(images) for name in ("none", "lame"))
    np.testing.assert_allclose(alone.probabilities, plain.probabilities, rtol=1e-5)


def test_lame_ends_at_a_lower_fixed_point() -> None:
    rng = np.random.default_rng(0)
    log_p = log_softmax(rng.standard_normal((24, 6), np.float32))
    weights = lame.affinity(rng.standard_normal((24, 8), np.float32), SETTINGS)
    assert weights.diagonal().max() == 0
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(), 24 * SETTINGS.lame_neighbours)
    log_y = lame.agree(log_p, weights, SETTINGS)
    np.testing.assert_allclose(log_y, log_softmax(log_p + weights @ np.exp(log_y)), atol=1e-3)

    def energy(log_y: Floats) -> float:
        y = np.exp(log_y)
        return float((y * (log_y - log_p - weights @ y / 2)).sum())

    assert energy(log_y) < energy(log_p)


def test_lame_makes_neighbours_agree() -> None:
    """Five sure samples of a cluster convince the doubtful sixth."""
    features = np.zeros((12, 2), np.float32)
    features[:6, 0] = features[6:, 1] = 1
    logits = np.zeros((12, 2), np.float32)
    logits[:6, 0] = logits[6:, 1] = 3
    logits[0] = (0, 0.5)
    agreed = lame.agree(log_softmax(logits), lame.affinity(features, SETTINGS), SETTINGS)
    assert agreed.argmax(axis=1).tolist() == [0] * 6 + [1] * 6


# T3A


def test_t3a_without_samples_is_the_head(path: Path) -> None:
    images = toy.images(32)
    adapted, plain = load(path, "t3a"), load(path, "none")
    np.testing.assert_allclose(
        adapted.predict(images, adapt=False).logits, plain.predict(images).logits, atol=1e-5
    )


@pytest.mark.parametrize("file", [embedded.MODEL, embedded.RESNET])
def test_t3a_without_samples_is_a_quantized_head_up_to_rounding(file: Path) -> None:
    model = load(file, "t3a")
    pixels = model.info.preprocessing
    images = np.random.default_rng(0).random((16, 1, pixels.height, pixels.width), np.float32)
    found, plain = model.predict(images, adapt=False).logits, outputs(model, images).logits
    np.testing.assert_allclose(found, plain, atol=0.01 * np.abs(plain).max())


def test_t3a_keeps_the_surest_supports(path: Path) -> None:
    """Against sorting everything seen so far."""
    model = load(path, "t3a", t3a_supports=4)
    weight, bias = Head.open(model._engine).weights()
    rows = weight.T
    seen = [
        (label, entropy, row / np.linalg.norm(row))
        for label, (entropy, row) in enumerate(
            zip(entropies(rows @ weight + bias), rows, strict=True)
        )
    ]
    stream = toy.images(120, shift=0.5)
    for start in range(0, 120, 24):
        batch = stream[start : start + 24]
        found = outputs(model, batch)
        units = found.embedding / np.linalg.norm(found.embedding, axis=1, keepdims=True)
        seen += zip(found.logits.argmax(axis=1), entropies(found.logits), units, strict=True)
        answer = model.predict(batch).logits
    for label, row in enumerate(rows):
        own = sorted((one for one in seen if one[0] == label), key=lambda one: one[1])[:4]
        total = np.sum([unit for _, _, unit in own], axis=0)
        centroid = np.linalg.norm(row) * total / np.linalg.norm(total)
        np.testing.assert_allclose(
            answer[:, label], found.embedding @ centroid + bias[label], atol=1e-4
        )
    assert model.status()["supports"] <= 4 * toy.CLASSES


# NEO


def test_neo_answers_with_centred_features(path: Path) -> None:
    model, images = load(path, "neo"), toy.images(64, shift=0.5)
    embedding, head = outputs(model, images).embedding, Head.open(model._engine)
    expected = head(embedding - embedding.mean(axis=0))
    np.testing.assert_allclose(model.predict(images).logits, expected, atol=1e-5)
    assert np.abs(expected - head(embedding)).max() > 0.1


def test_neo_does_not_depend_on_the_batches(path: Path) -> None:
    """The mean is of all samples: the last answers agree, however they came."""
    stream = toy.images(60)
    together, apart = load(path, "neo"), load(path, "neo")
    expected = together.predict(stream).logits[-1]
    for size in (1, 9, 20, 29):
        last = apart.predict(stream[:size]).logits[-1]
        stream = stream[size:]
    assert len(stream) == 1
    last = apart.predict(stream).logits[-1]
    np.testing.assert_allclose(last, expected, atol=1e-4)


# naive zeroth order


def test_zoo_moves_all_norms_down_the_entropy(path: Path) -> None:
    model = load(path, "zoo", pairs=400, perturbation=1e-3, learning_rate=1e-2)
    images, engine = toy.images(16), model._engine
    assert engine.chosen == tuple(range(toy.BLOCKS))
    parameters = Parameters(engine.info, engine.chosen)
    assert len(parameters) == 2 * toy.WIDTH * toy.BLOCKS
    batch = Batch.of(engine, parameters, images)
    true = np.empty(len(parameters))
    for index in range(len(true)):
        step = np.zeros(len(true), np.float32)
        step[index] = 1e-2
        sides = [batch(parameters.source + sign * step) for sign in (1, -1)]
        plus, minus = (entropies(side.logits).mean(dtype=np.float64) for side in sides)
        true[index] = (plus - minus) / 2e-2
    model.predict(images)
    moved = model.arrays()["method.theta"] - parameters.source
    cosine = -moved @ true / np.linalg.norm(moved) / np.linalg.norm(true)
    assert cosine > 0.8  # sqrt(k / (k + d)) = 0.87 is to be expected
    assert np.linalg.norm(moved) == pytest.approx(1e-2 * np.linalg.norm(true), rel=0.4)


def test_zoo_costs_two_passes_a_pair_and_one_to_answer(path: Path) -> None:
    model = load(path, "zoo", pairs=3)
    model.predict(toy.images(8))
    share = model._engine.cone_share
    assert share > 0.9
    assert model.passes / 8 == pytest.approx(1 - share + 7 * share)


# ZOA


def test_a_one_sided_difference_is_unbiased_on_a_quadratic() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((6, 6))
    hessian, slope = root @ root.T, rng.standard_normal(6)
    x, size = rng.standard_normal(6), 0.5  # so large that the second order counts

    def loss(x: NDArray[np.float64]) -> float:
        return float(x @ hessian @ x / 2 + slope @ x)

    draws = [draw("segmented-uniform", 6, rng) for _ in range(20_000)]
    found = np.stack(
        [zoa.one_sided(loss(x + size * u) - loss(x), size, credit) for u, credit in draws]
    )
    deviation = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - hessian @ x - slope) < 4 * deviation).all()
    assert deviation.max() < 0.1 * np.abs(hessian @ x + slope).max()


def test_zoa_takes_two_passes_and_answers_with_the_first(path: Path) -> None:
    model, images = load(path, "zoa"), toy.images(16)
    first = model.predict(images)
    np.testing.assert_allclose(first.logits, outputs(model, images).logits, atol=1e-5)
    share = model._engine.cone_share
    assert (model.passes - 16) / 16 == pytest.approx(1 + share, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(13, (1, 2, 3, 4, 5, 6, 7, 8)), (7, (1, 2, 3, 4)), (4, (1, 2)), (1, (0,))],
)
def test_zoa_moves_blocks_1_to_8_of_12(path: Path, count: int, expected: tuple[int, ...]) -> None:
    from dataclasses import replace

    info = Engine.open(path, chosen=(), threads=1).info
    assert zoa.Zoa.layers(replace(info, layers=info.layers[:1] * count), SETTINGS) == expected


def test_the_bank_gives_up_one_of_the_most_similar() -> None:
    bank, rng = Bank(40, SETTINGS), np.random.default_rng(0)
    shapes = {name: array.shape for name, array in bank.state().items()}
    deltas = rng.standard_normal((SETTINGS.zoa_bank, 40)).astype(np.float32)
    deltas[20] = 2 * deltas[5]
    for delta in deltas:
        bank.add(delta)
    assert bank.used == SETTINGS.zoa_bank + 1
    np.testing.assert_array_equal(bank.deltas[0], 0)  # the source
    new = rng.standard_normal(40).astype(np.float32)
    bank.add(new)
    expected = [*np.delete(deltas, 5, axis=0), new]
    np.testing.assert_array_equal(bank.deltas[1:], expected)
    assert bank.used == SETTINGS.zoa_bank + 1
    assert shapes == {name: array.shape for name, array in bank.state().items()}


def test_the_bank_mixes() -> None:
    bank = Bank(2, SETTINGS)
    bank.add(np.array([1, 3], np.float32))
    np.testing.assert_allclose(bank.mixed(bank.alphas[:2]), [0.5, 1.5])  # as sure as of the source
    np.testing.assert_allclose(bank.mixed(np.array([0, 5], np.float32)), [1, 3])


def test_zoa_sees_another_domain() -> None:
    model = load(embedded.MODEL, "zoa")
    pixels = model.info.preprocessing
    digits = np.random.default_rng(0).random((64, 1, pixels.height, pixels.width), np.float32)
    for images in (digits, digits, 0.2 * digits, 0.2 * digits):
        for start in range(0, 64, 16):
            model.predict(images[start : start + 16])
    assert model.status()["domains"] == 2
    assert model.arrays()["method.bank.used"] == 2


def test_divergence_is_that_of_gaussians() -> None:
    one, other = np.array([[0.0], [1.0]]), np.array([[2.0], [4.0]])
    forward = np.log(2) + (1 + 4) / 8 - 0.5
    backward = np.log(0.5) + (4 + 4) / 2 - 0.5
    assert divergence(one, other) == pytest.approx(forward + backward)
    assert divergence(one, one) == 0


# FOA


@pytest.mark.parametrize("file", [embedded.MODEL, embedded.RESNET])
def test_foa_lowers_its_loss(file: Path) -> None:
    pytest.importorskip("cma")
    model, source = load(file, "foa", foa_candidates=12), embedded.corrupted_stream()
    images = [sample.image for sample, _ in zip(source, range(8), strict=False)]
    losses = []
    for _ in range(15):
        model.predict(images)
        losses.append(model.status()["loss"])
    assert losses == sorted(losses, reverse=True)  # the best so far is always a candidate
    assert losses[-1] < 0.9 * losses[0]
    searched = {embedded.MODEL: "prompts", embedded.RESNET: "filter"}
    assert model.status()["searched"] == searched[file]


def test_foa_takes_its_candidates_in_passes(path: Path) -> None:
    pytest.importorskip("cma")
    model = load(path, "foa")
    model.predict(toy.images(4))
    assert model.passes / 4 == 27  # nothing answered before
    model.predict(toy.images(4))
    assert model.passes / 4 == 27 + 28


def test_the_strategy_is_cmas_own() -> None:
    """Made anew for each generation, it goes as one that lives on."""
    cma = pytest.importorskip("cma")
    size, rng = 20, np.random.default_rng(3)
    options = {
        "popsize": 8,
        "CMA_diagonal": True,
        "AdaptSigma": cma.sigma_adaptation.CMAAdaptSigmaCSA,
        "randn": lambda *shape: rng.standard_normal(shape),
        "seed": np.nan,
        "verbose": -9,
    }
    reference = cma.CMAEvolutionStrategy(size * [0.0], SETTINGS.foa_sigma, options)
    ours = Strategy(size, Settings(foa_candidates=9, seed=3))

    def loss(x: NDArray[np.float64]) -> float:
        return float((np.linspace(1, 9, size) * (x - 1) ** 2).sum())

    untouched = np.random.get_state()[1].copy()
    for _ in range(60):
        theirs = reference.ask()
        strategy, candidates = ours.ask()
        np.testing.assert_allclose(candidates, theirs, rtol=1e-9, atol=1e-12)
        losses = [loss(one) for one in theirs]
        reference.tell(theirs, losses)
        ours.tell(strategy, candidates, losses)
    assert min(losses) < 0.1 * loss(np.zeros(size))
    np.testing.assert_array_equal(np.random.get_state()[1], untouched)


def test_a_filter_of_zero_is_the_model(tmp_path: Path) -> None:
    pytest.importorskip("cma")
    model = load(embedded.RESNET, "foa")
    pixels = model.info.preprocessing
    images = np.random.default_rng(0).random((4, 1, pixels.height, pixels.width), np.float32)
    found = model._method._pass(images, np.zeros(49))  # type: ignore[attr-defined]
    np.testing.assert_allclose(found.logits, outputs(model, images).logits, atol=1e-5)


def test_prompts_are_tokens_more(tmp_path: Path) -> None:
    """Against the same net in torch, prompts put in by hand."""
    from zotta_edge.runtime.methods.foa.prompts import PROMPTS, searchable
    from zotta_edge.sessions import open_session

    path = exported("vit", 17, tmp_path)
    session = open_session(searchable(path.read_bytes(), "vit.onnx"), threads=1)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((3, 3, nets.SIZE, nets.SIZE), np.float32)
    prompts = rng.standard_normal((1, 3, 16), np.float32)
    names = [LOGITS, EMBEDDING, "feature.0"]
    logits, embedding, feature = session.run(names, {IMAGE: images, PROMPTS: prompts})
    net = nets.make("vit")
    assert isinstance(net, nets.ViT)
    with torch.no_grad():
        x = net.patch(torch.from_numpy(images)).flatten(2).transpose(1, 2)
        x = torch.cat([net.cls.expand(3, -1, -1), x], 1) + net.pos
        x = torch.cat([x, torch.from_numpy(prompts).expand(3, -1, -1)], 1)
        first = net.blocks[0](x)
        last = net.norm(net.blocks(x))[:, 0]
        np.testing.assert_allclose(feature, first[:, :-3].mean(1), atol=1e-4)
        np.testing.assert_allclose(embedding, last, atol=1e-4)
        np.testing.assert_allclose(logits, net.head(last), atol=1e-4)


def test_foa_without_cma_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(ZottaError, match=r"foa needs the cma package.*zotta-edge\[bench\]"):
        load(path, "foa")


# BN-Adapt


def exported(name: str, opset: int, folder: Path, precision: str = "fp32") -> Path:
    source, path = folder / "source.onnx", folder / f"{name}.onnx"
    onnx.save(nets.load(name, opset), source)
    options = ExportOptions(precision=precision, mean=(0.5,), std=(0.5,))  # type: ignore[arg-type]
    export_model(str(source), path, options)
    return path


@pytest.mark.parametrize("name", ["resnet-bn", "preact"])
def test_batch_statistics_alone_are_torchs_training_mode(name: str, tmp_path: Path) -> None:
    model = load(exported(name, 17, tmp_path), "bn_adapt", bn_prior=0)
    images = 0.5 * np.random.default_rng(0).standard_normal(
        (8, 3, nets.SIZE, nets.SIZE), np.float32
    )
    net = nets.make(name)
    with torch.no_grad():
        plain = net(torch.from_numpy(images)).numpy()
        expected = net.train()(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(model.predict(images).logits, expected, atol=2e-3)
    assert np.abs(plain - expected).max() > 0.1


def test_source_and_batch_are_mixed_as_published(tmp_path: Path) -> None:
    """mean = N/(N+n) mean_S + n/(N+n) mean_T, and so the variance, against torch's own."""
    model = load(exported("resnet-bn", 17, tmp_path), "bn_adapt")
    images = 0.5 * np.random.default_rng(0).standard_normal(
        (8, 3, nets.SIZE, nets.SIZE), np.float32
    )
    net = nets.make("resnet-bn")
    share = 8 / (8 + SETTINGS.bn_prior)

    def mix(norm: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(norm, torch.nn.BatchNorm2d)
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
        norm.running_mean = (1 - share) * norm.running_mean + share * mean
        norm.running_var = (1 - share) * norm.running_var + share * variance

    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_pre_hook(mix)
    with torch.no_grad():
        expected = net(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(model.predict(images).logits, expected, atol=2e-3)


@pytest.mark.parametrize("name", ["resnet-bn", "preact"])
def test_a_quantized_model_with_no_share_is_itself(name: str, tmp_path: Path) -> None:
    path = exported(name, 17, tmp_path, "int8")
    images = np.random.default_rng(0).standard_normal((4, 3, nets.SIZE, nets.SIZE), np.float32)
    found, plain = (
        load(path, way, bn_prior=1e12).predict(images).logits for way in ("bn_adapt", "none")
    )
    np.testing.assert_allclose(found, plain, atol=0.02 * np.abs(plain).max())


@pytest.mark.parametrize("name", ["vit", "resnet-gn", "resnet-in", "convnext", "vit-rms"])
def test_models_without_batch_norm_are_told_so(name: str, tmp_path: Path) -> None:
    path = exported(name, 17, tmp_path)
    with pytest.raises(ZottaError, match="has no BatchNorm") as caught:
        load(path, "bn_adapt")
    assert "\n" not in str(caught.value)


# calibration


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(BATCH_NORM) - {"pea"}))
def test_calibration_is_asked_for_where_it_is_needed(method: str, tmp_path: Path) -> None:
    path = toy.build(tmp_path / "toy.onnx", calibrated=False)
    if method in ("none", "lame", "t3a", "neo", "zoo"):
        assert np.isfinite(load(path, method).predict(toy.images(4)).logits).all()
    else:
        with pytest.raises(ZottaError, match="not calibrated.*zotta-edge calibrate") as caught:
            load(path, method)
        assert "\n" not in str(caught.value)
