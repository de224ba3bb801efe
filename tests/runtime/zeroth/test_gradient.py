"""Eq. 2 on DeiT-Ti against the gradient that torch back-propagates through Eq. 5."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.io.images import read_image
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.watch.statistics import Queue, Source, moments, pooled
from zotta_edge.runtime.zeroth.estimator import PerSample, SharedDirections
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment
from zotta_edge.runtime.zeroth.parameters import Parameters

torch = pytest.importorskip("torch")

Floats = NDArray[np.float32]
CHOSEN = (3, 4, 5)
BATCH = 64
PAIRS = 14
ENTROPY, ALIGNMENT = 1.0, 0.4  # lambda1, lambda2
# 99.9 % of chi-squared with k degrees of freedom lie between
CHI_SQUARED = {1: (1e-6, 10.9), 5: (0.21, 20.6), 14: (3.0, 36.2)}


@dataclass(frozen=True)
class Setting:
    engine: Engine
    parameters: Parameters
    source: Source
    images: Floats  # noisy

    @property
    def batch(self) -> Batch:
        return Batch.of(self.engine, self.parameters, self.images)

    @property
    def objective(self) -> EntropyAndAlignment:
        return EntropyAndAlignment(
            self.source, ENTROPY, ALIGNMENT, "mean", Queue(1, len(self.source.mean))
        )


@pytest.fixture(scope="module")
def setting(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    from zotta_edge.export.pipeline import ExportOptions, export_model

    path = tmp_path_factory.mktemp("deit") / "deit.onnx"
    source = str(shared_data / "deit-tiny" / "deit_tiny_fp32.onnx")
    info = export_model(source, path, ExportOptions(precision="fp32"))
    files = sorted((shared_data / "imagenet-val-2000").glob("*.jpg"))[: 2 * BATCH]
    images = prepare([read_image(file) for file in files], info.preprocessing)
    engine = Engine.open(path, chosen=CHOSEN)
    mean, std = moments(pooled(engine.cone(engine.stem(images[BATCH:]), {})))
    ends = np.cumsum([layer.channels for layer in info.layers])
    noise = np.random.default_rng(0).normal(scale=1.5, size=images[:BATCH].shape)
    return Setting(
        engine,
        Parameters(info, CHOSEN),
        Source(mean, std, BATCH, ends),
        images[:BATCH] + noise.astype(np.float32),
    )


def few(setting: Setting) -> Setting:
    return replace(setting, images=setting.images[:8])


@pytest.fixture(scope="module")
def network(shared_data: Path) -> Any:
    from zotta_edge.models.checkpoint import load_weights, read_checkpoint
    from zotta_edge.models.registry import architecture

    model = architecture("deit_tiny_patch16_224").build(1000).eval()
    checkpoint = shared_data / "deit-tiny" / "deit_tiny_patch16_224.pth"
    load_weights(model, read_checkpoint(checkpoint), checkpoint)
    return model.requires_grad_(False)


def true_gradient(network: Any, setting: Setting) -> NDArray[np.float64]:
    """dL/dtheta by back-propagation, in theta's order.

    First to v and the logits, then sample by sample on to theta: a whole batch's activations
    would take gigabytes.
    """
    parts = [
        part.requires_grad_()
        for block in CHOSEN
        for norm in (network.blocks[block].norm1, network.blocks[block].norm2)
        for part in (norm.weight, norm.bias)
    ]
    chunks = torch.tensor(setting.images).split(8)
    with torch.no_grad():
        passes = [_forward(network, chunk) for chunk in chunks]
    v, logits = (torch.cat(part).requires_grad_() for part in zip(*passes, strict=True))
    log_p = logits.log_softmax(1)
    mean, std = torch.tensor(setting.source.mean), torch.tensor(setting.source.std)
    aligned = (v.mean(0) - mean).square().sum() + (v.std(0, correction=0) - std).square().sum()
    loss = ENTROPY * -(log_p.exp() * log_p).sum(1).mean() + ALIGNMENT * aligned
    outer = zip(*(g.split(8) for g in torch.autograd.grad(loss, (v, logits))), strict=True)
    total = [
        torch.autograd.grad(_forward(network, chunk), parts, slopes)
        for chunk, slopes in zip(chunks, outer, strict=True)
    ]
    summed = [sum(gradients).numpy() for gradients in zip(*total, strict=True)]
    return np.concatenate(summed).astype(np.float64)


def _forward(network: Any, images: Any) -> tuple[Any, Any]:
    """v of all layers side by side, and the logits."""
    features: list[Any] = []
    hooks = [
        layer.register_forward_hook(lambda module, given, out: features.append(out.mean(1)))
        for layer in [*network.blocks, network.norm]
    ]
    logits = network(images)
    for hook in hooks:
        hook.remove()
    return torch.cat(features, 1), logits


def cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_slopes_and_cosine(setting: Setting, network: Any) -> None:
    """Each difference is the true slope along u; so d cos^2 is chi-squared with k degrees."""
    setting = few(setting)
    gradient = true_gradient(network, setting)
    theta, batch = setting.parameters.source, setting.batch
    rng = np.random.default_rng(0)
    estimates = [
        SharedDirections(1)(batch, theta, setting.objective, 0.01, rng) for _ in range(PAIRS)
    ]
    rng = np.random.default_rng(0)
    directions = [rng.standard_normal(len(theta), dtype=np.float32) for _ in range(PAIRS)]
    slopes = np.array([(one.losses[0] - one.losses[1]) / 0.02 for one in estimates])
    true_slopes = np.array([u @ gradient for u in directions])
    error = np.linalg.norm(slopes - true_slopes) / np.linalg.norm(true_slopes)
    assert error < 0.02  # c = 0.01 leaves third-order terms only

    for pairs, (low, high) in CHI_SQUARED.items():
        estimate = np.mean([one.gradient for one in estimates[:pairs]], axis=0)
        found = cosine(estimate, gradient)
        assert low < len(theta) * found**2 < high
        assert found > 0


def test_a_direction_for_every_sample_sees_more(setting: Setting, network: Any) -> None:
    """Two passes over 64 images: 0.09 to 0.15 from draw to draw, a shared direction has 0.02."""
    gradient = true_gradient(network, setting)
    theta, batch = setting.parameters.source, setting.batch
    assert len(theta) == 2304
    estimates = [
        PerSample(1)(batch, theta, setting.objective, 0.01, np.random.default_rng(seed))
        for seed in range(5)
    ]
    cosines = [cosine(estimate.gradient, gradient) for estimate in estimates]
    assert np.mean(cosines) >= 0.10
    assert min(cosines) >= 0.05
