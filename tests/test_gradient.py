"""Eq. 2 on DeiT-Ti against the gradient that torch back-propagates through Eq. 5."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.runtime.engine import Engine, Outputs
from zotta_edge.runtime.estimator import SharedDirections
from zotta_edge.runtime.images import read_image
from zotta_edge.runtime.objective import EntropyAndAlignment
from zotta_edge.runtime.parameters import Parameters
from zotta_edge.runtime.preprocessing import prepare
from zotta_edge.runtime.statistics import Queue, Source, moments, pooled

torch = pytest.importorskip("torch")

Floats = NDArray[np.float32]
CHOSEN = (3, 4, 5)
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
    def objective(self) -> EntropyAndAlignment:
        return EntropyAndAlignment(
            self.source, ENTROPY, ALIGNMENT, "mean", Queue(1, len(self.source.mean))
        )


class Batch:
    batch = 8

    def __init__(self, setting: Setting) -> None:
        self.setting, self.stem = setting, setting.engine.stem(setting.images)

    def __call__(self, theta: Floats) -> Outputs:
        return self.setting.engine.cone(self.stem, self.setting.parameters.affines(theta))


@pytest.fixture(scope="module")
def setting(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    from zotta_edge.export.pipeline import ExportOptions, export_model

    path = tmp_path_factory.mktemp("deit") / "deit.onnx"
    source = str(shared_data / "deit-tiny" / "deit_tiny_fp32.onnx")
    info = export_model(source, path, ExportOptions(precision="fp32"))
    files = sorted((shared_data / "imagenet-val-2000").glob("*.jpg"))[:16]
    images = prepare([read_image(file) for file in files], info.preprocessing)
    engine = Engine.open(path, chosen=CHOSEN)
    mean, std = moments(pooled(engine.cone(engine.stem(images[8:]), {})))
    ends = np.cumsum([layer.channels for layer in info.layers])
    noise = np.random.default_rng(0).normal(scale=1.5, size=images[:8].shape)
    return Setting(
        engine,
        Parameters(info, CHOSEN),
        Source(mean, std, 8, ends),
        images[:8] + noise.astype(np.float32),
    )


@pytest.fixture(scope="module")
def true_gradient(setting: Setting, shared_data: Path) -> NDArray[np.float64]:
    """dL/dtheta by back-propagation, in theta's order."""
    from zotta_edge.models.checkpoint import load_weights, read_checkpoint
    from zotta_edge.models.registry import architecture

    model = architecture("deit_tiny_patch16_224").build(1000).eval()
    checkpoint = shared_data / "deit-tiny" / "deit_tiny_patch16_224.pth"
    load_weights(model, read_checkpoint(checkpoint), checkpoint)
    features = []
    for layer in [*model.blocks, model.norm]:
        layer.register_forward_hook(lambda module, given, out: features.append(out.mean(1)))
    log_p = model(torch.tensor(setting.images)).log_softmax(1)
    v = torch.cat(features, 1)
    mean, std = torch.tensor(setting.source.mean), torch.tensor(setting.source.std)
    aligned = (v.mean(0) - mean).square().sum() + (v.std(0, correction=0) - std).square().sum()
    loss = ENTROPY * -(log_p.exp() * log_p).sum(1).mean() + ALIGNMENT * aligned
    loss.backward()
    parts = [
        part.grad.numpy()
        for block in CHOSEN
        for norm in (model.blocks[block].norm1, model.blocks[block].norm2)
        for part in (norm.weight, norm.bias)
    ]
    return np.concatenate(parts).astype(np.float64)


def test_slopes_and_cosine(setting: Setting, true_gradient: NDArray[np.float64]) -> None:
    """Each difference is the true slope along u; so d cos^2 is chi-squared with k degrees."""
    theta, batch = setting.parameters.source, Batch(setting)
    rng = np.random.default_rng(0)
    estimates = [
        SharedDirections(1)(batch, theta, setting.objective, 0.01, rng) for _ in range(PAIRS)
    ]
    rng = np.random.default_rng(0)
    directions = [rng.standard_normal(len(theta), dtype=np.float32) for _ in range(PAIRS)]
    slopes = np.array([(one.losses[0] - one.losses[1]) / 0.02 for one in estimates])
    true_slopes = np.array([u @ true_gradient for u in directions])
    error = np.linalg.norm(slopes - true_slopes) / np.linalg.norm(true_slopes)
    assert error < 0.02  # c = 0.01 leaves third-order terms only

    norm = np.linalg.norm(true_gradient)
    for pairs, (low, high) in CHI_SQUARED.items():
        gradient = np.mean([one.gradient for one in estimates[:pairs]], axis=0)
        cosine = gradient @ true_gradient / np.linalg.norm(gradient) / norm
        assert low < len(theta) * cosine**2 < high
        assert cosine > 0
