"""SFAA's source statistics: mu_l^S and sigma_l^S of every layer's pooled feature."""

from pathlib import Path

import numpy as np

from zotta_edge.calibration.features import in_batches
from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE, Floats, ModelInfo
from zotta_edge.runtime.session import open_session
from zotta_edge.runtime.statistics import moments

Statistics = tuple[tuple[Floats, ...], tuple[Floats, ...]]


def source_statistics(
    path: str | Path, info: ModelInfo, images: Floats, threads: int | None = None
) -> Statistics:
    """mu_l^S = 1/N sum_i v_l^(i) and sigma_l^S = sqrt(1/N sum_i |v_l^(i) - mu_l^S|^2), by channel.

    The pooled features v_l are the file's own outputs, those that adaptation will be shown. They
    are a few thousand numbers an image, so all N are held and the sums made in float64.
    """
    session = open_session(path, threads=threads)
    names = [layer.feature for layer in info.layers]
    rows = [session.run(names, {IMAGE: batch}) for batch in in_batches(images)]  # [batch][layer]
    layers = [moments(np.concatenate(pooled)) for pooled in zip(*rows, strict=True)]
    mean, std = zip(*layers, strict=True)
    if not all(np.isfinite(values).all() for values in (*mean, *std)):
        raise ZottaError(f"{path} gives features that are not finite: export it again")
    return tuple(m.astype(np.float32) for m in mean), tuple(s.astype(np.float32) for s in std)
