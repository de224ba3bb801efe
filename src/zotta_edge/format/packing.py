"""Arrays as text for a file's metadata: base64 of little-endian numbers, matrices in bytes."""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_SCALE = np.dtype("<f4")


def encode(values: NDArray[Any], kind: str = "<f4") -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def decode(text: str) -> Floats:
    return finite(np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32))


def finite(values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise ValueError("numbers that are not finite")
    return values


def decode_bytes(text: str) -> NDArray[np.int8]:
    return np.frombuffer(base64.b64decode(text, validate=True), np.int8)


def coded(values: Floats) -> NDArray[np.int8]:
    """A matrix in bytes, with a scale of its own for each column: the scales, then the rows.

    >>> eye = np.eye(3, dtype=np.float32)
    >>> np.array_equal(matrix(coded(eye), columns=3), eye)
    True
    """
    scale = np.maximum(np.abs(values).max(axis=0) / 127, np.float32(1e-30)).astype(_SCALE)
    return np.concatenate([scale.view(np.int8), np.rint(values / scale).astype(np.int8).ravel()])


def coded_bytes(rows: int, columns: int) -> int:
    """How many `coded` takes for a matrix of that size."""
    return columns * (rows + _SCALE.itemsize)


def matrix(stored: NDArray[np.int8], columns: int) -> Floats:
    """The reverse of `coded`."""
    scale, rows = np.split(stored, [columns * _SCALE.itemsize])
    values: Floats = rows.reshape(-1, columns).astype(np.float32)
    return finite(values * np.frombuffer(scale.tobytes(), _SCALE))
