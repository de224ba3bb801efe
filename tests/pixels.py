"""Images as the filters see them."""

import numpy as np

from zotta_edge.format import Floats, Preprocessing

PIXELS = (0.5, 0.2)
P = Preprocessing(height=64, width=64, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))


def normalized(pixels: Floats) -> Floats:
    """[batch, C, H, W] from 0 to 1, as the network sees it."""
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (P.mean, P.std))
    batch: Floats = (pixels.astype(np.float32) - mean) / std
    return batch
