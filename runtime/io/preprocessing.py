"""From images to the network's input: resize, centre crop, (x / 255 - mean) / std.

Resizing follows PIL (and so torchvision and timm), whose filters widen when an image shrinks:
OpenCV's bilinear and bicubic do not, and the aliasing costs accuracy. A resize is linear and
separable, so it is two small matrices, R_height @ image @ R_width^T, with the crop taken for free
by leaving rows out. PIL itself is not needed on the device.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, Preprocessing

Image = NDArray[np.uint8]
Images = Sequence[NDArray[Any]] | NDArray[Any]

_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601, as PIL's convert("L")
_PART = 2**22  # pixels that are made grey at a time
_GAP = 2  # an image twice this much too large is first averaged over blocks of pixels
_MARGIN = 8  # times the range from black to white that a prepared value may lie outside of it
_BLOCK = 32  # output rows whose filters are applied in one product


def as_batch(images: Images, p: Preprocessing) -> Floats:
    """The network's input.

    Parameters
    ----------
    images
        uint8 images of any sizes, or a float batch that is preprocessed already, whose shape and
        values are checked.
    p
        How the model's images are prepared.

    Examples
    --------
    >>> p = Preprocessing(2, 2, (0.5,), (0.25,))
    >>> white = np.full((1, 4, 4, 1), 255, np.uint8)
    >>> as_batch(white, p)
    array([[[[2., 2.],
             [2., 2.]]]], dtype=float32)
    """
    if isinstance(images, np.ndarray) and np.issubdtype(images.dtype, np.floating):
        return _checked(images, p)
    return prepare(images, p)


def prepare(images: Images, p: Preprocessing) -> Floats:
    """The network's input from images: resized, cropped and normalised.

    Parameters
    ----------
    images
        uint8 images [H, W], [H, W, 1] or [H, W, 3] (RGB) of any sizes; an array is a batch along
        its first axis.
    p
        How the model's images are prepared.

    Returns
    -------
    float32 [B, C, H, W], or [B, H, W, C] with `p.layout` NHWC.

    Examples
    --------
    >>> p = Preprocessing(32, 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), resize=36)
    >>> prepare([np.zeros((48, 64), np.uint8), np.zeros((90, 40, 3), np.uint8)], p).shape
    (2, 3, 32, 32)
    """
    images = _as_images(images)
    planes = np.empty((len(images), p.channels, p.height, p.width), np.float32)
    for index, image in enumerate(images):
        _normalize(fit(image, p, index), p, out=planes[index])
    return planes if p.layout == "NCHW" else np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def mirrored(batch: Floats, p: Preprocessing) -> Floats:
    """A prepared batch, left and right exchanged."""
    return np.ascontiguousarray(np.flip(batch, axis=3 if p.layout == "NCHW" else 2))


def fit(image: NDArray[Any], p: Preprocessing, index: int = 0) -> Image:
    """The pixels the network will see: resized and centre-cropped.

    Parameters
    ----------
    image
        uint8 [H, W], [H, W, 1] or [H, W, 3]; one that has the input's size is left as it is.
    p
        How the model's images are prepared.
    index
        What an error calls the image.

    Returns
    -------
    uint8 [height, width, C].

    Examples
    --------
    >>> p = Preprocessing(32, 32, (0.5,), (0.5,))
    >>> fit(np.zeros((48, 64, 3), np.uint8), p).shape
    (32, 32, 1)
    """
    pixels = _with_channels(_valid(image, index), p.channels)
    rows, columns = pixels.shape[:2]
    if (rows, columns) == (p.height, p.width):
        return pixels
    height, width = _resized(rows, columns, p)
    return resample(pixels, height, width, (p.height, p.width), p.interpolation)


def _as_images(images: Images) -> Images:
    single = isinstance(images, np.ndarray) and (
        images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in (1, 3, 4))
    )
    if single:
        raise ZottaError("expected a batch of images, got one: pass image[None] or [image]")
    if len(images) == 0:
        raise ZottaError("expected a batch of images, got none")
    return images


def _valid(image: Any, index: int) -> Image:
    array = np.asarray(image)
    if array.dtype != np.uint8:
        raise ZottaError(
            f"image {index} is {array.dtype}: expected uint8 images, "
            "or one preprocessed float array [batch, channel, height, width]"
        )
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape:
        raise ZottaError(
            f"image {index} has shape {np.shape(image)}: expected [height, width], "
            "[height, width, 1] or [height, width, 3] (RGB)"
        )
    return array


def _with_channels(image: Image, channels: int) -> Image:
    if image.shape[2] == channels:
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=2)
    if channels == 1:
        return _grey(image)
    raise ZottaError(f"the model takes {channels} channels: preprocess the images yourself")


def _grey(image: Image) -> Image:
    """By parts: as numbers with a point, a large image takes six times its memory."""
    grey = np.empty((*image.shape[:2], 1), np.uint8)
    rows = max(1, _PART // image.shape[1])
    for at in range(0, len(image), rows):
        grey[at : at + rows, :, 0] = np.rint(image[at : at + rows] @ _GREY)
    return grey


def _resized(rows: int, columns: int, p: Preprocessing) -> tuple[int, int]:
    """Size before the crop, as torchvision's Resize rounds it."""
    if p.resize is None:
        return p.height, p.width
    short = min(rows, columns)
    height, width = p.resize * rows // short, p.resize * columns // short
    if height < p.height or width < p.width:
        raise ZottaError(
            f"the model's preprocessing resizes a {columns} x {rows} image to {width} x {height}, "
            f"smaller than its input of {p.width} x {p.height}: export it again with a larger "
            "resize"
        )
    return height, width


def resample(
    image: Image, height: int, width: int, crop: tuple[int, int], interpolation: str
) -> Image:
    """Resize [H, W, C] to height x width, keep the centre `crop`: R_height @ image @ R_width^T."""
    rows, columns = image.shape[:2]
    image = _reduced(image, height, width)
    by_rows = _resize_matrix(rows, image.shape[0], height, crop[0], interpolation)
    by_columns = _resize_matrix(columns, image.shape[1], width, crop[1], interpolation)
    resized = _banded(by_rows, image)  # [height, W, C]
    resized = _banded(by_columns, resized.swapaxes(0, 1)).swapaxes(0, 1)  # [height, width, C]
    pixels: Image = np.rint(resized.clip(0, 255)).astype(np.uint8)
    return pixels


def _reduced(image: Image, height: int, width: int) -> Image:
    """Average whole blocks of pixels while that leaves `_GAP` times the wanted size or more.

    The exact filter of a 4000 x 3000 photograph would cost more than decoding it.
    """
    by = [
        max(1, size // (_GAP * wanted))
        for size, wanted in zip(image.shape, (height, width), strict=False)
    ]
    if by == [1, 1]:
        return image
    import cv2

    rows, columns = image.shape[0] // by[0], image.shape[1] // by[1]
    whole = image[: rows * by[0], : columns * by[1]]
    shrunk: Image = cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA)
    return shrunk.reshape(rows, columns, -1)


@lru_cache(maxsize=16)  # of a narrow image, one may take several MB
def _resize_matrix(size: int, have: int, full: int, crop: int, interpolation: str) -> Floats:
    """Filter weights [crop, have] of the centre `crop` of `full` pixels, from `size` pixels.

    `have` < `size` when the pixels were averaged in blocks first.
    """
    block = max(1, size // have)
    scale = size / block / full  # `size / block` may be a little more than `have`
    stretch = max(scale, 1.0)  # the filter widens only when shrinking
    outputs = np.arange(crop) + round((full - crop) / 2)
    centres = (outputs + 0.5) * scale  # [crop]
    distance = np.abs(np.arange(have) + 0.5 - centres[:, None])  # [crop, have]
    weights = _kernel(distance, stretch, interpolation)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


def _kernel(pixels: NDArray[np.float64], stretch: float, kind: str) -> NDArray[np.float64]:
    """Weight at a distance: box coverage, triangle, or cubic convolution with a = -1/2."""
    if kind == "area":
        return np.clip((1 + stretch) / 2 - pixels, 0, 1)
    x = pixels / stretch
    if kind == "bilinear":
        return np.maximum(1 - x, 0)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _banded(weights: Floats, image: NDArray[Any]) -> Floats:
    """`weights @ image` over the first axis, by blocks of rows: the matrix is zero off a band."""
    result = np.empty((len(weights), *image.shape[1:]), np.float32)
    for start in range(0, len(weights), _BLOCK):
        block = weights[start : start + _BLOCK]
        used = np.flatnonzero(block.any(axis=0))
        band = slice(used[0], used[-1] + 1)
        source = image[band].astype(np.float32).reshape(used[-1] + 1 - used[0], -1)
        result[start : start + _BLOCK] = (block[:, band] @ source).reshape(-1, *image.shape[1:])
    return result


def _normalize(image: Image, p: Preprocessing, out: Floats) -> None:
    """(x / 255 - mean) / std of [H, W, C] into [C, H, W], an image at a time: it fits the cache."""
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (p.mean, p.std))
    out[...] = (image if p.order == "RGB" else image[..., ::-1]).transpose(2, 0, 1)
    out *= 1 / (255 * std)
    out -= mean / std


def _checked(batch: NDArray[Any], p: Preprocessing) -> Floats:
    sizes = (p.channels, p.height, p.width)
    expected = sizes if p.layout == "NCHW" else (p.height, p.width, p.channels)
    if batch.ndim != 4 or batch.shape[1:] != expected or len(batch) == 0:
        raise ZottaError(
            f"expected a preprocessed batch of shape [batch, {', '.join(map(str, expected))}], "
            f"got {list(batch.shape)}"
        )
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes inf: caught below
        batch = np.ascontiguousarray(batch, np.float32)
    _check_range(float(batch.min()), float(batch.max()), p)
    return batch


def value_range(p: Preprocessing) -> tuple[float, float]:
    """The least and the largest value that a prepared image can have."""
    channels = list(zip(p.mean, p.std, strict=True))
    return min(-m / s for m, s in channels), max((1 - m) / s for m, s in channels)


def _check_range(least: float, most: float, p: Preprocessing) -> None:
    """Refuse what no image can become: such numbers overflow inside a network, and stay there."""
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ZottaError("the batch holds NaN or infinite values: check what prepared it")
    black, white = value_range(p)
    margin = _MARGIN * (white - black)
    if least < black - margin or most > white + margin:
        raise ZottaError(
            f"the batch holds values from {least:.4g} to {most:.4g}: this model's images lie "
            f"between {black:.4g} and {white:.4g}, check what prepared it"
        )
