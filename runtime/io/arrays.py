"""Images in NumPy files: `.npz` with `images` and perhaps `labels`, or a plain `.npy`."""

import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError

_DAMAGED = (  # what NumPy and zipfile raise for headers that say anything
    *(
        OSError,
        ValueError,
        EOFError,
        KeyError,
        TypeError,
        OverflowError,
        SyntaxError,
        RecursionError,
    ),
    *(NotImplementedError, RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True)
class Labelled:
    """uint8 images [N, H, W] or [N, H, W, C], and a class number for each; -1 where unknown."""

    images: NDArray[np.uint8]
    labels: NDArray[np.integer[Any]] | None = None


def load_images(path: Path) -> Labelled:
    """Read a file of images.

    Parameters
    ----------
    path
        An `.npz` with `images` and perhaps `labels`, or an `.npy` of images, which stays on the
        disk until it is used.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "test.npz")
    >>> np.savez(path, images=np.zeros((2, 8, 8, 3), np.uint8), labels=[4, -1])
    >>> content = load_images(path)
    >>> content.images.shape, content.labels.tolist()
    ((2, 8, 8, 3), [4, -1])
    """
    arrays = load_arrays(path)
    images = arrays.get("images")
    if images is None:
        candidates = [array for array in arrays.values() if array.ndim in (3, 4)]
        images = candidates[0] if len(candidates) == 1 else None
    if images is None or not _are_images(images):
        held = ", ".join(f"{key} {a.dtype} {list(a.shape)}" for key, a in arrays.items())
        raise ZottaError(
            f"{path} holds {held or 'nothing'}: expected uint8 `images` of shape "
            "[count, height, width] or [count, height, width, 1 or 3]"
        )
    labels = arrays.get("labels")
    return Labelled(images, None if labels is None else class_numbers(labels, len(images), path))


def class_numbers(labels: NDArray[Any], count: int | None, path: Path) -> NDArray[np.integer[Any]]:
    """Labels as they must be: one integer an image, -1 for an image that has none."""
    labels = labels.reshape(-1) if labels.ndim == 2 and 1 in labels.shape else labels
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ZottaError(
            f"{path}: labels are {labels.dtype} {list(labels.shape)}, expected one integer an image"
        )
    if count is not None and len(labels) != count:
        raise ZottaError(f"{path} has {len(labels)} labels for {count} images")
    if len(labels) and labels.min() < -1:
        raise ZottaError(
            f"{path}: label {labels.min()} is negative: classes are counted from 0, and -1 leaves "
            "an image unscored"
        )
    return labels


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of a NumPy file, by name; Python objects (pickles) are refused.

    An archive may hold other files, such as a readme: they are left out.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ZottaError(f"{path} is not a file: expected a NumPy file")
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {path.stem: loaded}
        with loaded:
            arrays = {key: loaded[key] for key in loaded.files}
            return {key: array for key, array in arrays.items() if isinstance(array, np.ndarray)}
    except FileNotFoundError as error:
        raise ZottaError(f"{path} does not exist") from error
    except MemoryError as error:  # its header may claim any size
        raise ZottaError(f"cannot read {path}: its arrays do not fit into memory") from error
    except _DAMAGED as error:
        raise ZottaError(f"cannot read {path}: {' '.join(str(error).split())}") from error


def load_array(path: Path) -> NDArray[Any]:
    """The one array of an `.npy`, of at least one axis."""
    arrays = [array for array in load_arrays(path).values() if array.ndim]
    if len(arrays) != 1:
        raise ZottaError(f"{path} does not hold one array: expected an .npy of numbers")
    return arrays[0]


def _are_images(array: NDArray[Any]) -> bool:
    shaped = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))
    return array.dtype == np.uint8 and shaped and 0 not in array.shape
