"""Other views of a batch: a centre crop, and the mirror image."""

import numpy as np

from zotta_edge.format import Floats

_CROP = 0.9  # of either side


def views(images: Floats, count: int, layout: str) -> list[Floats]:
    """The batch, its centre crop and its mirror image, as many as are asked for."""
    first = 1 if layout == "NHWC" else 2  # axis of the rows
    made = [images]
    if count > 1:
        made.append(_cropped(_cropped(images, first), first + 1))
    if count > 2:
        made.append(np.ascontiguousarray(np.flip(images, first + 1)))
    return made


def _cropped(images: Floats, axis: int) -> Floats:
    """The middle of an axis, stretched over all of it, bilinear with pixels as areas."""
    size = images.shape[axis]
    inside = max(1, round(_CROP * size))
    place = (size - inside) // 2 + (np.arange(size) + 0.5) * inside / size - 0.5
    place = np.clip(place, (size - inside) // 2, (size - inside) // 2 + inside - 1)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, size - 1)
    part = (place - low).astype(np.float32).reshape([-1 if a == axis else 1 for a in range(4)])
    stretched: Floats = np.take(images, low, axis) * (1 - part) + np.take(images, high, axis) * part
    return np.ascontiguousarray(stretched)
