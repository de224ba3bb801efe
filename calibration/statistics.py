"""SFAA's source statistics: mu_l^S and sigma_l^S of every layer's pooled feature."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zotta_edge.calibration.features import in_batches
from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, Floats, ModelInfo
from zotta_edge.progress import tracked
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.watch.statistics import moments
from zotta_edge.sessions import open_session


@dataclass(frozen=True)
class Statistics:
    mean: tuple[Floats, ...]  # mu_l^S, one vector a layer
    std: tuple[Floats, ...]  # sigma_l^S
    embedding_mean: Floats
    embedding_std: Floats


def source_statistics(
    path: str | Path, info: ModelInfo, images: Floats, threads: int | None = None
) -> Statistics:
    """mu_l^S = 1/N sum_i v_l^(i) and sigma_l^S = sqrt(1/N sum_i |v_l^(i) - mu_l^S|^2), by channel.

    The pooled features v_l are the file's own outputs, those that adaptation will be shown; the
    embedding is what its classifier head reads. They are a few thousand numbers an image, so all N
    are held and the sums made in float64.
    """
    session = open_session(path, threads=threads)
    names = [*(layer.feature for layer in info.layers), EMBEDDING]
    batches = tracked(in_batches(images), "measuring statistics")
    rows = [session.run(names, {IMAGE: batch}) for batch in batches]  # [batch][layer]
    pairs = [moments(np.concatenate(pooled)) for pooled in zip(*rows, strict=True)]
    if not all(np.isfinite(values).all() for pair in pairs for values in pair):
        raise ZottaError(f"{path} gives features that are not finite: export it again")
    *mean, embedding_mean = (mean.astype(np.float32) for mean, _ in pairs)
    *std, embedding_std = (std.astype(np.float32) for _, std in pairs)
    return Statistics(tuple(mean), tuple(std), embedding_mean, embedding_std)


def pixel_statistics(images: Image) -> tuple[float, float]:
    """Mean and spread of an image's pixels, from 0 to 1: the source's brightness and contrast."""
    both = np.mean([(image.mean(), image.std()) for image in images], axis=0) / 255
    return round(float(both[0]), 4), round(float(both[1]), 4)
