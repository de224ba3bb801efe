"""The source domain as the quantized model sees it, and the layers chosen from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zotta_edge.format.layers import Layer
from zotta_edge.format.packing import Floats, decode, encode

STATISTICS = ("mean", "std", "embedding_mean", "embedding_std")


@dataclass(frozen=True)
class Calibration:
    """The source domain as the quantized model sees it, and the layers chosen from it."""

    mean: tuple[Floats, ...]  # mu_l^S, one vector a layer
    std: tuple[Floats, ...]  # sigma_l^S
    embedding_mean: Floats  # of what the classifier head reads
    embedding_std: Floats
    chosen: tuple[int, ...]  # indices into `layers`
    purity: tuple[float, ...]  # P_l; empty when the layers were given or chosen by another rule
    samples: int  # N images behind the statistics
    rule: str
    tau: float
    seed: int
    source: str  # fingerprint of the source images
    ood: str  # fingerprint of the OOD images, or how they were made
    seconds: float
    pixels: tuple[float, float] | None = None  # mean and spread of a source image, from 0 to 1


def calibration_to_metadata(calibration: Calibration) -> dict[str, str]:
    plain = {key: value for key, value in vars(calibration).items() if key not in STATISTICS}
    embedding = [calibration.embedding_mean, calibration.embedding_std]
    return {
        "zotta.calibration": json.dumps(plain, separators=(",", ":")),
        "zotta.statistics": encode(np.concatenate([*calibration.mean, *calibration.std])),
        "zotta.embedding": encode(np.concatenate(embedding)),
    }


def calibration_from_metadata(
    metadata: Mapping[str, str], layers: tuple[Layer, ...]
) -> Calibration | None:
    if "zotta.embedding" not in metadata:
        return None
    plain = json.loads(metadata["zotta.calibration"])
    pixels = plain.pop("pixels", None)
    flat = decode(metadata["zotta.statistics"])
    channels = [layer.channels for layer in layers]
    if len(flat) != 2 * sum(channels):
        raise ValueError(f"{len(flat)} statistics for {2 * sum(channels)} channels")
    if any(not 0 <= index < len(layers) for index in plain["chosen"]):
        raise ValueError(f"chosen layers {plain['chosen']} of {len(layers)}")
    parts = np.split(flat, np.cumsum(channels * 2)[:-1])
    embedding = decode(metadata["zotta.embedding"]).reshape(2, -1)
    return Calibration(
        mean=tuple(parts[: len(layers)]),
        std=tuple(parts[len(layers) :]),
        embedding_mean=embedding[0],
        embedding_std=embedding[1],
        chosen=tuple(plain.pop("chosen")),
        purity=tuple(plain.pop("purity")),
        pixels=None if pixels is None else (float(pixels[0]), float(pixels[1])),
        **plain,
    )
