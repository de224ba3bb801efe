"""Image filters that undo some of what weather, a lens or a sensor does, on prepared batches."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from zotta_edge.format import Floats, Preprocessing

AS_IS = "none"
_MEDIAN = 3  # pixels, side of the square
_SIZE = 224  # pixels, of images that these are right for; smaller ones hold more in a pixel:
_SMOOTH = 1.0  # pixels, sigma of a Gaussian
_FINE = 3.0  # pixels: what a Gaussian of this sigma takes away is what sharpening adds...
_SHARPEN = 3.0  # ...this many times


class Filters:
    """[batch, C, H, W] -> the same, by the filter's name.

    >>> filters = Filters(Preprocessing(8, 8, (0.5,), (0.5,)), pixels=None)
    >>> filters.names
    ('none', 'smooth', 'median', 'sharpen')
    >>> filters("median", np.eye(8, dtype=np.float32)[None, None])[0, 0, 4].max()
    np.float32(0.0)
    """

    def __init__(self, p: Preprocessing, pixels: tuple[float, float] | None) -> None:
        """`pixels`: mean and spread of a source image's, from 0 to 1; None: no `contrast`."""
        self._last = p.layout == "NHWC"
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (p.mean, p.std))
        self._range = -mean / std, (1 - mean) / std  # black and white
        scale = math.sqrt(min(p.height, p.width) / _SIZE)
        self._filters: dict[str, Callable[[Floats], Iterable[Floats]]] = {  # to an image's planes
            "smooth": _by_plane(lambda plane: _smoothed(plane, _SMOOTH * math.sqrt(scale))),
            "median": _by_plane(_median),
            "sharpen": _by_plane(lambda plane: _sharpened(plane, _FINE * scale)),
        }
        if pixels is not None:
            self._filters["contrast"] = lambda image: (
                (_levelled(image * std + mean, *pixels) - mean) / std
            )

    @property
    def names(self) -> tuple[str, ...]:
        return (AS_IS, *self._filters)

    def __call__(self, name: str, batch: Floats) -> Floats:
        return self.each([name] * len(batch), batch)

    def each(self, names: Sequence[str], batch: Floats) -> Floats:
        """Every image through a filter of its own."""
        if all(name == AS_IS for name in names):
            return batch
        result = np.empty_like(batch)  # the only copy: new memory takes longer than a median
        for name, image, out in zip(names, self._planes(batch), self._planes(result), strict=True):
            self._write(name, image, out)
        return result

    def _write(self, name: str, image: Floats, out: Floats) -> None:
        if name == AS_IS:
            out[:] = image
            return
        for plane, filtered in zip(out, self._filters[name](image), strict=True):
            plane[:] = filtered
        np.clip(out, *self._range, out=out)

    def _planes(self, batch: Floats) -> Floats:
        """A view with the channels first."""
        return batch.transpose(0, 3, 1, 2) if self._last else batch


def _by_plane(change: Callable[[Floats], Floats]) -> Callable[[Floats], Iterable[Floats]]:
    return lambda image: (change(np.ascontiguousarray(plane)) for plane in image)


def _median(plane: Floats) -> Floats:
    import cv2  # takes 24 MB, which only streams that are filtered are to pay

    median: Floats = cv2.medianBlur(plane, _MEDIAN)
    return median


def _smoothed(plane: Floats, sigma: float) -> Floats:
    import cv2

    side = 2 * math.ceil(2 * sigma) + 1  # to two sigma on either side
    blurred: Floats = cv2.GaussianBlur(plane, (side, side), sigma)
    return blurred


def _sharpened(plane: Floats, sigma: float) -> Floats:
    import cv2

    coarse = _smoothed(plane, sigma)
    sharpened: Floats = cv2.addWeighted(plane, 1 + _SHARPEN, coarse, -_SHARPEN, 0.0)
    return sharpened


def _levelled(image: Floats, mean: float, spread: float) -> Floats:
    """Pixels from 0 to 1, with the brightness and the contrast of a source image."""
    scale = np.float32(spread / max(float(image.std()), 1e-6))
    levelled: Floats = (image - image.mean()) * scale + np.float32(mean)
    return levelled
