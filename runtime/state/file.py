"""State files: a few KB that continue an adaptation bit for bit, or are refused."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.runtime.state import version1
from zotta_edge.runtime.state.fields import Arrays

FORMAT_VERSION = "2"


def save(path: str | Path, arrays: Arrays, model: str, method: str) -> None:
    """Write a state of the model with that fingerprint, atomically."""
    # Not `save_file`: it renames a file of its own over ours, and a kill leaves that one behind.
    from safetensors.numpy import save as serialized

    path = Path(path)
    if not path.parent.is_dir():
        raise ZottaError(f"cannot write {path}: there is no folder {path.parent}")
    header = {"format": FORMAT_VERSION, "model": model, "method": method}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header |= {"checksum": _checksum(contiguous, header)}
    content = serialized(contiguous, header)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def load(path: str | Path, like: Arrays, model: str, method: str) -> dict[str, NDArray[Any]]:
    """Read a state that fits: of this model and method, whole, with arrays like the given ones."""
    header, arrays = _read(Path(path))
    if header.get("format") not in (version1.FORMAT, FORMAT_VERSION):
        raise ZottaError(
            f"{path} has state format {header.get('format')}, this version reads "
            f"{version1.FORMAT} and {FORMAT_VERSION}: start with a new state file"
        )
    checksum = header.pop("checksum", "")
    if checksum != _checksum(arrays, header):
        raise ZottaError(f"{path} is damaged (checksum): delete it to start from the source")
    if header["model"] != model:
        raise ZottaError(f"{path} belongs to another model file: give each model its own state")
    if header["method"] != method:
        raise ZottaError(f"{path} is a state of method {header['method']}, not of {method}")
    if header["format"] == version1.FORMAT:
        arrays = _upgraded(path, arrays, method)
    _check_fields(path, arrays, like)
    return arrays


def _upgraded(path: str | Path, arrays: Arrays, method: str) -> dict[str, NDArray[Any]]:
    try:
        return version1.upgraded(arrays, method)
    except (KeyError, IndexError, ValueError) as error:
        raise ZottaError(
            f"{path} has state format {version1.FORMAT} (zotta-edge 0.1.0) with other fields than "
            "that version wrote: start with a new state file"
        ) from error


def _check_fields(path: str | Path, arrays: Arrays, like: Arrays) -> None:
    """Refuse unknown fields, missing ones but for whole table rows, and other shapes."""
    if unknown := sorted(arrays.keys() - like.keys()):
        raise ZottaError(
            f"{path} holds {unknown[0]}, which this version does not know: use the version that "
            "wrote it, or a new state file"
        )
    rows = {_row(name) for name in arrays}
    missing = [name for name in like if name not in arrays]
    if lacking := [name for name in missing if "[" not in name or _row(name) in rows]:
        raise ZottaError(f"{path} lacks {lacking[0]}: use a new state file")
    shapes = _shapes(like)
    if any(shapes[name] != shape for name, shape in _shapes(arrays).items()):
        raise ZottaError(
            f"{path} was made with other settings (layers or queue): use those, or a new state file"
        )
    for name, array in arrays.items():
        if not _sound(array, like[name]):
            raise ZottaError(
                f"{path} is damaged ({name} is not finite): delete it to start from the source"
            )


def _row(name: str) -> str:
    """The part of a name that says which row of a table a field belongs to (`fields.row`)."""
    return name.partition("]")[0]


def outline(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Arrays alike in shape and kind, and in what is not finite; others take no memory."""
    return {
        name: np.broadcast_to(np.zeros((), array.dtype), array.shape)
        if _finite(array).all()
        else array.copy()
        for name, array in arrays.items()
    }


def _finite(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isfinite(array) if array.dtype.kind == "f" else np.ones(array.shape, bool)


def _sound(array: NDArray[Any], like: NDArray[Any]) -> bool:
    """Whether all numbers are finite but those that are not in a new model's state either."""
    return bool((_finite(array) | ~_finite(like)).all())


def _read(path: Path) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ZottaError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return dict(file.metadata() or {}), arrays
    except (SafetensorError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise ZottaError(f"{path} is damaged or no state file ({error}): name another") from error
    except OSError as error:
        raise ZottaError(f"cannot read {path}: {error.strerror or error}") from error


def _shapes(arrays: Arrays) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (array.dtype.str, array.shape) for name, array in arrays.items()}


def _checksum(arrays: Arrays, header: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, (dtype, shape) in sorted(_shapes(arrays).items()):
        digest.update(f"{name} {dtype} {shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
