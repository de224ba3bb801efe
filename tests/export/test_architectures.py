"""Architectures as `transformers` builds them: each is exported, checked, and adapted by a step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nets
import numpy as np
import onnx
import pytest
import torch
from torch import nn

from zotta_edge import AdaptiveModel
from zotta_edge.calibration.calibrate import Settings as Calibrating
from zotta_edge.calibration.calibrate import calibrate, store
from zotta_edge.calibration.selection import Choice
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.export.sources.torch_source import randomized
from zotta_edge.format import ModelInfo
from zotta_edge.runtime.settings import Settings

transformers = pytest.importorskip("transformers")

TOKENS = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": 32, "patch_size": 8},
}
MLP = {"intermediate_size": 64}
WINDOWS = {
    **{"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2]},
    **{"num_heads": [2, 2], "window_size": 4},
}
STAGES = {"hidden_sizes": [16, 32], "depths": [1, 2]}
CVT = {
    **{"embed_dim": [8, 16], "num_heads": [1, 2], "depth": [1, 2], "mlp_ratio": [2.0, 2.0]},
    **{
        "patch_sizes": [7, 3],
        "patch_stride": [4, 2],
        "patch_padding": [2, 1],
        "cls_token": [False, True],
    },
    **{"kernel_qkv": [3, 3], "padding_kv": [1, 1], "stride_kv": [2, 2], "padding_q": [1, 1]},
    **{"stride_q": [1, 1], "qkv_bias": [True, True], "qkv_projection_method": ["dw_bn", "dw_bn"]},
    **{"attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0], "drop_path_rate": [0.0, 0.0]},
}
# Class, what makes it small, and the side of its images.
SMALL: Mapping[str, tuple[str, dict[str, Any], int]] = {
    "vit": ("ViT", TOKENS | MLP, 32),
    "deit": ("DeiT", TOKENS | MLP, 32),
    "dinov2": ("Dinov2", TOKENS | {"mlp_ratio": 2, "layerscale_value": 0.5}, 32),
    "beit": ("Beit", TOKENS | MLP | {"use_relative_position_bias": True}, 32),
    "swin": ("Swin", WINDOWS, 32),
    "swinv2": ("Swinv2", WINDOWS, 32),
    "convnext": ("ConvNext", STAGES | {"num_stages": 2, "layer_scale_init_value": 0.5}, 32),
    "convnextv2": ("ConvNextV2", STAGES | {"num_stages": 2}, 32),
    "resnet": ("ResNet", STAGES | {"embedding_size": 8}, 32),
    "regnet": ("RegNet", STAGES | {"embedding_size": 8, "groups_width": 8}, 32),
    "mobilenetv1": ("MobileNetV1", {"depth_multiplier": 0.25}, 32),
    "mobilenetv2": ("MobileNetV2", {"depth_multiplier": 0.25}, 32),
    "efficientnet": (
        "EfficientNet",
        {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
        32,
    ),
    "mobilevit": (
        "MobileViT",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 24, 32, 32, 48],
            "num_attention_heads": 2,
        },
        64,
    ),
    "mobilevitv2": (
        "MobileViTV2",
        {
            "image_size": 64,
            "width_multiplier": 0.25,
            "n_attn_blocks": [1, 1, 1],
            "base_attn_unit_dims": [16, 24, 32],
        },
        64,
    ),
    "levit": (
        "Levit",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        64,
    ),
    "poolformer": ("PoolFormer", {"hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1]}, 64),
    "cvt": ("Cvt", CVT, 32),
    "swiftformer": (  # convolutions first, attention behind them, as in EfficientFormer
        "SwiftFormer",
        {"image_size": 64, "embed_dims": [8, 16, 16, 24], "depths": [1, 1, 1, 1]},
        64,
    ),
}


class Logits(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(image).logits
        return logits


def built(name: str) -> tuple[Logits, int]:
    kind, small, size = SMALL[name]
    config = getattr(transformers, f"{kind}Config")(**small, num_labels=5)
    config._attn_implementation = "eager"  # the other is no operator of opset 13
    torch.manual_seed(0)
    network = getattr(transformers, f"{kind}ForImageClassification")(config)
    return Logits(randomized(network)), size


def photos(size: int, count: int = 16) -> np.ndarray:
    """Coarse patches of colour, which no network answers all alike."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return coarse.repeat(size // 8, axis=1).repeat(size // 8, axis=2)


def check(name: str, opset: int, folder: Path) -> ModelInfo:
    network, size = built(name)
    with torch.no_grad():
        model = nets.export(network, opset, size=size)
    path, out = folder / "net.onnx", folder / "adaptable.onnx"
    onnx.save(model, path)
    info = export_model(str(path), out, ExportOptions(mean=(0.5,), std=(0.5,)))
    images = photos(size)
    settings = Calibrating(Choice(layers=(len(info.layers) // 2,)))
    store(calibrate(out, images, settings=settings))
    adapting = AdaptiveModel.load(out, Settings(always=True, pairs=1), "zotta", threads=1)
    before = adapting.unadapted().predict(images).logits
    with torch.no_grad():
        pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1)
        own = network(pixels).numpy()
    assert np.corrcoef(before.ravel(), own.ravel())[0, 1] > 0.97
    assert adapting.predict(images // 2).adapted
    assert adapting.status()["steps"] == 1
    return info


# The older exporter below opset 18, the newer from there on; it takes seconds.
OLDER = {
    **{
        "vit": 13,
        "deit": 14,
        "swin": 15,
        "swinv2": 16,
        "beit": 17,
        "convnext": 13,
        "convnextv2": 14,
        "mobilevit": 16,
    },
    **{
        "mobilenetv1": 15,
        "mobilenetv2": 17,
        "efficientnet": 13,
        "regnet": 14,
        "resnet": 16,
        "levit": 17,
    },
    **{"poolformer": 13, "cvt": 15, "swiftformer": 16, "dinov2": 17},
}
NEWER = {
    **{"vit": 18, "convnext": 20, "resnet": 22, "mobilevitv2": 21},
    **{
        "deit": 19,
        "swin": 21,
        "swinv2": 18,
        "beit": 20,
        "convnextv2": 23,
        "mobilevit": 19,
        "dinov2": 23,
        "cvt": 20,
    },
    **{
        "mobilenetv1": 22,
        "mobilenetv2": 23,
        "efficientnet": 18,
        "regnet": 19,
        "levit": 20,
        "poolformer": 21,
    },
    **{"swiftformer": 22},
}
QUICK = ("vit", "convnext")


@pytest.mark.parametrize(("name", "opset"), OLDER.items())
def test_by_the_older_exporter(name: str, opset: int, tmp_path: Path) -> None:
    info = check(name, opset, tmp_path)
    assert not any(norm.inserted for norm in info.norms)


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        pytest.param(name, opset, marks=() if name in QUICK else pytest.mark.slow)
        for name, opset in NEWER.items()
    ],
)
def test_by_the_newer_exporter(name: str, opset: int, tmp_path: Path) -> None:
    check(name, opset, tmp_path)


def test_every_architecture_is_tested() -> None:
    assert set(OLDER) | {"mobilevitv2"} == set(NEWER) == set(SMALL)
