"""The named architectures: what `zotta-edge export NAME` builds, and how its images are prepared.

Torch is imported when a model is built, not when the names are listed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zotta_edge.errors import ZottaError
from zotta_edge.format import Preprocessing

if TYPE_CHECKING:
    from torch import nn

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HALF = (0.5, 0.5, 0.5)

# Sizes before the crop are 224 / 0.9 and 224 / 0.94, as the published checkpoints were evaluated.
_DEIT = Preprocessing(224, 224, _IMAGENET_MEAN, _IMAGENET_STD, 248, "bicubic")
_AUGREG = Preprocessing(224, 224, _HALF, _HALF, 248, "bicubic")
_RESNET = Preprocessing(224, 224, _IMAGENET_MEAN, _IMAGENET_STD, 238, "bicubic")
_CIFAR = Preprocessing(32, 32, _HALF, _HALF)
_DIGITS = Preprocessing(32, 32, (0.5,), (0.5,), interpolation="bicubic")


@dataclass(frozen=True)
class Architecture:
    """A model that can be built by name."""

    build: Callable[[int], "nn.Module"]  # from the number of classes
    head: str  # the module whose weight has one row a class
    preprocessing: Preprocessing
    classes: int = 1000


def _vit(shape: str) -> Callable[[int], "nn.Module"]:
    def build(classes: int) -> "nn.Module":
        from zotta_edge.models import vit

        return vit.VisionTransformer(getattr(vit, shape), classes)

    return build


def _resnet50_gn(classes: int) -> "nn.Module":
    from zotta_edge.models.resnet_gn import ResNet50GN

    return ResNet50GN(classes)


def _cifar_resnet26_gn(classes: int) -> "nn.Module":
    from zotta_edge.models.cifar_resnet_gn import SmallResNetGN, SmallResNetShape

    return SmallResNetGN(SmallResNetShape(), classes)


def _digits_vit(classes: int) -> "nn.Module":
    from zotta_edge.models.vit import VisionTransformer, ViTShape

    shape = ViTShape(64, depth=6, heads=4, image=32, patch=8, channels=1)
    return VisionTransformer(shape, classes)


def _digits_resnet_gn(classes: int) -> "nn.Module":
    from zotta_edge.models.cifar_resnet_gn import SmallResNetGN, SmallResNetShape

    return SmallResNetGN(SmallResNetShape((16, 32, 64), blocks=1, channels=1), classes)


ARCHITECTURES = {
    "vit_tiny_patch16_224": Architecture(_vit("TINY"), "head", _AUGREG),
    "vit_small_patch16_224": Architecture(_vit("SMALL"), "head", _AUGREG),
    "vit_base_patch16_224": Architecture(_vit("BASE"), "head", _AUGREG),
    "vit_large_patch16_224": Architecture(_vit("LARGE"), "head", _AUGREG),
    "deit_tiny_patch16_224": Architecture(_vit("TINY"), "head", _DEIT),
    "deit_small_patch16_224": Architecture(_vit("SMALL"), "head", _DEIT),
    "deit_base_patch16_224": Architecture(_vit("BASE"), "head", _DEIT),
    "resnet50_gn": Architecture(_resnet50_gn, "fc", _RESNET),
    "cifar10_resnet26_gn": Architecture(_cifar_resnet26_gn, "fc", _CIFAR, 10),
    "digits_vit": Architecture(_digits_vit, "head", _DIGITS, 10),
    "digits_resnet_gn": Architecture(_digits_resnet_gn, "fc", _DIGITS, 10),
}


def architecture(name: str) -> Architecture:
    """The architecture called `name`; a wrong name is answered with all right ones."""
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ZottaError(
            f"{name!r} is no .onnx file, no package.module:factory, no timm:NAME, and "
            f"none of the architectures here: {known}"
        )
    return ARCHITECTURES[name]
