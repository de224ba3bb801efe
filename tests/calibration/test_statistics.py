"""Source statistics and un-pooled features against torch, on the published weights."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from zotta_edge.calibration.features import at_positions, by_layer, in_batches
from zotta_edge.calibration.purity import purity
from zotta_edge.calibration.samples import read_samples
from zotta_edge.calibration.statistics import source_statistics
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import Floats, ModelInfo
from zotta_edge.models.checkpoint import load_weights, read_checkpoint
from zotta_edge.models.registry import architecture
from zotta_edge.runtime.io.preprocessing import prepare

MODELS = {
    "deit_tiny_patch16_224": ("deit-tiny/deit_tiny_fp32.onnx", "imagenet-val-2000"),
    "cifar10_resnet26_gn": ("cifar10-rn26-gn/cifar10_rn26_gn.onnx", "cifar10_test_5000.npz"),
}


class Published:
    """A published model exported as fp32, the same in torch, and 20 images: not whole batches."""

    def __init__(self, name: str, data: Path, folder: Path) -> None:
        known, (model, images) = architecture(name), MODELS[name]
        self.path = folder / f"{name}.onnx"
        options = ExportOptions("fp32", mean=known.preprocessing.mean, std=known.preprocessing.std)
        self.info: ModelInfo = export_model(str(data / model), self.path, options)
        self.module: nn.Module = known.build(known.classes).eval()
        (weights,) = (data / model).parent.glob("*.pth")
        load_weights(self.module, read_checkpoint(weights), weights)
        self.samples = read_samples(data / images, self.info.preprocessing, 20, seed=0)
        self.images: Floats = prepare(self.samples.images, self.info.preprocessing)

    def torch_features(self) -> list[Tensor]:
        """What leaves each layer's module, [20, token, C] or [20, C, H, W]."""
        caught: dict[str, Tensor] = {}
        modules = dict(self.module.named_modules())
        for layer in self.info.layers:
            modules[layer.name].register_forward_hook(
                lambda _module, _inputs, output, name=layer.name: caught.update({name: output})
            )
        with torch.no_grad():
            self.module(torch.from_numpy(self.images))
        if "bn" in caught:  # ResNet26's last norm ends in the ReLU behind it
            caught["bn"] = caught["bn"].relu()
        return [caught[layer.name] for layer in self.info.layers]


@pytest.fixture(scope="module", params=MODELS)
def published(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Published:
    return Published(request.param, shared_data, tmp_path_factory.mktemp("published"))


def test_statistics_are_torchs(published: Published) -> None:
    found = source_statistics(published.path, published.info, published.images)
    mean, std = found.mean, found.std
    for index, tensor in enumerate(published.torch_features()):
        pooled = tensor.double().mean(dim=1 if tensor.ndim == 3 else (2, 3))  # v_l
        expected = pooled.mean(dim=0), pooled.std(dim=0, correction=0)
        for ours, wanted in zip((mean[index], std[index]), expected, strict=True):
            np.testing.assert_allclose(ours, wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_features_walked_layer_by_layer_are_torchs(published: Published) -> None:
    walked = by_layer(published.path, published.info, in_batches(published.images))
    for tensors, expected in zip(walked, published.torch_features(), strict=True):
        difference = np.concatenate(tensors) - expected.numpy()
        assert np.linalg.norm(difference) < 2e-5 * np.linalg.norm(expected.numpy())


def test_purity_of_real_features_is_brute_forces(published: Published) -> None:
    """Many starts at one position after the other, in float64, then Eq. 3 by counting."""
    noisy = np.asarray(corrupt_batch(published.samples.images, "speckle_noise", 5, seed=0))
    drifted = prepare(noisy, published.info.preprocessing)
    domain = np.arange(40) >= 20
    batches = [*in_batches(published.images), *in_batches(drifted)]
    walked = by_layer(published.path, published.info, batches)
    for index, (layer, tensors) in enumerate(zip(published.info.layers, walked, strict=True)):
        if index not in (0, 2):
            continue
        chunks = list(at_positions(tensors, layer.kind))[::8]
        expected = np.mean([eq3_by_brute_force(x, domain) for chunk in chunks for x in chunk])
        assert purity(chunks, domain, seed=0) == pytest.approx(expected, abs=0.015)


def eq3_by_brute_force(x: Floats, domain: np.ndarray) -> float:
    """2-means from every pair of every third sample; the least inertia wins."""
    x = x.astype(np.float64)
    best, clusters = np.inf, domain
    for pair in combinations(range(0, len(x), 3), 2):
        side, inertia = lloyd(x, x[list(pair)])
        if inertia < best:
            best, clusters = inertia, side
    counts = [
        max(sum(clusters[i] == q and domain[i] == c for i in range(len(x))) for c in (False, True))
        for q in (False, True)
    ]
    return sum(counts) / len(x)


def lloyd(x: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    side = np.zeros(len(x), bool)
    for _ in range(100):
        distance = np.square(x[:, None] - centres).sum(axis=2)
        before, side = side, distance[:, 1] < distance[:, 0]
        if (side == before).all() or side.all() or not side.any():
            break
        centres = np.stack([x[~side].mean(axis=0), x[side].mean(axis=0)])
    return side, float(np.square(x[:, None] - centres).sum(axis=2).min(axis=1).sum())


def test_a_layer_that_needs_more_than_the_one_before_it_is_still_right(
    residual_net: onnx.ModelProto, tmp_path: Path
) -> None:
    """Where a layer's tensor lies inside a residual branch, the next one starts at the image."""
    onnx.save(residual_net, tmp_path / "net.onnx")
    path = tmp_path / "out.onnx"
    options = ExportOptions("fp32", mean=(0.5,), std=(0.5,))
    info = export_model(str(tmp_path / "net.onnx"), path, options)
    images = np.random.default_rng(0).standard_normal((5, 3, 16, 16)).astype(np.float32)
    straight = [tensors[0] for tensors in by_layer(path, info, [images])]
    nodes = onnx.load(path).graph.node
    branch = next(n.output[0] for n in nodes if n.op_type == "Conv" and "layer1.1" in n.name)
    bent_layers = (info.layers[0], replace(info.layers[1], tensor=branch), info.layers[2])
    bent = [t[0] for t in by_layer(path, replace(info, layers=bent_layers), [images])]
    assert not np.allclose(bent[1], straight[1])
    np.testing.assert_allclose(bent[2], straight[2], atol=1e-5)
