"""What plays the published models and images where they are not at hand, in the same folders.

The architectures are the published ones with random weights, the images are cuttings of
scikit-learn's two photographs: all that a test can ask of them but accuracy.
"""

from dataclasses import dataclass
from pathlib import Path

import cv2
import nets
import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from zotta_edge.export.sources.torch_source import randomized
from zotta_edge.models.registry import architecture

Pixels = NDArray[np.uint8]


def make(folder: Path) -> Path:
    """DeiT-Ti and RN26-GN as checkpoint and ONNX file, labelled photographs and small images."""
    deit = published("deit_tiny_patch16_224", opset=17)
    deit.save(folder / "deit-tiny", "deit_tiny_patch16_224.pth", "deit_tiny_fp32.onnx")
    resnet = published("cifar10_resnet26_gn", opset=21)
    resnet.save(folder / "cifar10-rn26-gn", "cifar10_rn26_gn.pth", "cifar10_rn26_gn.onnx")
    photographs(folder / "imagenet-val-2000", count=2 * 64, classes=1000)
    labels = np.arange(200) % 10
    np.savez(folder / "cifar10_test_5000.npz", images=cuttings(200, 32), labels=labels)
    return folder


@dataclass(frozen=True)
class Published:
    weights: dict[str, torch.Tensor]
    model: onnx.ModelProto

    def save(self, folder: Path, weights: str, model: str) -> None:
        folder.mkdir()
        torch.save(self.weights, folder / weights)
        onnx.save(self.model, folder / model)


def published(name: str, opset: int) -> Published:
    known = architecture(name)
    module = randomized(known.build(known.classes).eval())
    exported = nets.export(module, opset, size=known.preprocessing.height)
    return Published(module.state_dict(), exported)


def photographs(folder: Path, count: int, classes: int) -> None:
    folder.mkdir()
    lines = ["file,label"]
    for index, image in enumerate(cuttings(count, 224)):
        cv2.imwrite(str(folder / f"{index:04d}.jpg"), image)
        lines.append(f"{index:04d}.jpg,{index * 7 % classes}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def cuttings(count: int, side: int) -> Pixels:
    """Squares out of two photographs, no two alike."""
    from sklearn.datasets import load_sample_images

    rng, photos = np.random.default_rng(0), load_sample_images().images
    return np.stack([cutting(photos[index % 2], side, rng) for index in range(count)])


def cutting(photo: Pixels, side: int, rng: np.random.Generator) -> Pixels:
    size = int(rng.integers(120, 400))
    top, left = (int(rng.integers(length - size)) for length in photo.shape[:2])
    square = photo[top : top + size, left : left + size]
    return np.asarray(cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA))
