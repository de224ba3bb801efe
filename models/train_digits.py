"""Train the embedded models: a small ViT and a small ResNet-GN on scikit-learn's digits.

    python -m zotta_edge.models.train_digits --output FOLDER

Of the 1,797 handwritten digits, 8x8 pixels each, 40 % are for training; the rest becomes the
stream that `zotta-edge adapt` runs on when it is given nothing else. Training sees clean images
only, shifted, turned and scaled a little: what corruption does to them is left to adaptation.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from zotta_edge.files import replacing
from zotta_edge.models import embedded
from zotta_edge.models.registry import ARCHITECTURES
from zotta_edge.progress import tracked
from zotta_edge.runtime.io.preprocessing import prepare

# The layers to adapt. Models this small are all mixed up about domains (purity 0.50 to 0.56 in
# every layer), so these stand where the paper's choice does: before the middle, never first.
MODELS = {"digits_vit": (1, 2, 3), "digits_resnet_gn": (1,)}
_SCALE = 255 / 16  # the digits have 17 levels of grey
_TRAIN_SHARE = 0.4

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    epochs: int = 60
    batch: int = 64
    rate: float = 2e-3  # AdamW's, with one cosine cycle
    decay: float = 0.05
    shift: float = 0.12  # of half the side
    turn: float = 0.2  # radians
    stretch: float = 0.12
    seed: int = 0


@dataclass(frozen=True)
class Digits:
    """uint8 images [N, 8, 8] and what they show."""

    images: Pixels
    labels: Labels


def digits() -> tuple[Digits, Digits]:
    """Training images, and the held-out ones of the stream."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data: Any = load_digits()
    images = (data.images * _SCALE).astype(np.uint8)
    train, held_out = train_test_split(
        np.arange(len(images)), train_size=_TRAIN_SHARE, stratify=data.target, random_state=0
    )
    labels = data.target.astype(np.int64)
    return Digits(images[train], labels[train]), Digits(images[held_out], labels[held_out])


def train(name: str, data: Digits, recipe: Recipe) -> nn.Module:
    """Fit the architecture `name` to `data`; the same seed and thread count give the same model."""
    torch.manual_seed(recipe.seed)
    model = ARCHITECTURES[name].build(10)
    images, labels = as_input(name, data.images), torch.from_numpy(data.labels)
    steps = -(-len(images) // recipe.batch) * recipe.epochs
    optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, total_steps=steps, pct_start=0.2, cycle_momentum=False
    )
    model.train()
    for _ in tracked(range(recipe.epochs), f"training {name}"):
        for index in torch.split(torch.randperm(len(images)), recipe.batch):
            loss = F.cross_entropy(model(jittered(images[index], recipe)), labels[index])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return model.eval()


def as_input(name: str, images: Pixels) -> Tensor:
    """What the device will make of the images, [N, 1, 32, 32] from -1 to 1."""
    return torch.from_numpy(prepare(images, ARCHITECTURES[name].preprocessing))


def jittered(images: Tensor, recipe: Recipe) -> Tensor:
    """Each image shifted, turned and scaled by a little of its own."""
    count = len(images)
    angle = (2 * torch.rand(count) - 1) * recipe.turn
    zoom = 1 + (2 * torch.rand(count, 2) - 1) * recipe.stretch
    shift = (2 * torch.rand(count, 2) - 1) * recipe.shift
    rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(-1, 2, 2)
    transform = torch.cat([rotation * zoom[:, None], shift[:, :, None]], 2)  # [batch, 2, 3]
    grid = F.affine_grid(transform, list(images.shape), align_corners=False)
    return F.grid_sample(images + 1, grid, align_corners=False) - 1  # black outside


def accuracy(model: nn.Module, images: Tensor, labels: Labels) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1).numpy() == labels).mean())


def embed(name: str, model: nn.Module, data: Digits, output: Path) -> None:
    """Export `model` to INT8, calibrate and prime it on its training images.

    The 7-bit weights of the `avx2` recipe are right on every CPU, and this file goes to all.
    """
    from safetensors.torch import save_file

    from zotta_edge.calibration.calibrate import Settings, calibrate, store
    from zotta_edge.calibration.prime import prime
    from zotta_edge.calibration.selection import Choice
    from zotta_edge.export.pipeline import ExportOptions, export_model

    with tempfile.TemporaryDirectory() as folder:
        weights, images = Path(folder) / "weights.safetensors", Path(folder) / "images.npz"
        save_file(model.state_dict(), weights)
        np.savez(images, images=data.images)
        options = ExportOptions(
            target="avx2", weights=weights, data=str(images), labels=tuple("0123456789")
        )
        export_model(name, output, options)
    settings = Settings(Choice(layers=MODELS[name]), samples=len(data.images))
    report = calibrate(output, data.images, settings=settings)
    store(prime(report, data.images, settings))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, metavar="FOLDER", default=Path(embedded.__path__[0]))
    output: Path = parser.parse_args().output
    torch.set_num_threads(1)  # sums in one order, so the same weights whatever the core count
    data, stream = digits()
    for name in MODELS:
        model = train(name, data, Recipe())
        share = accuracy(model, as_input(name, stream.images), stream.labels)
        print(f"{name}: {share:.1%} of the held-out digits")
        embed(name, model, data, output / f"{name}_int8.onnx")
    with replacing(output / "digits_stream.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, images=stream.images, labels=stream.labels)


if __name__ == "__main__":
    main()
