"""State files: a few KB that continue an adaptation bit for bit, or are refused."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing

FORMAT_VERSION = "1"
Arrays = Mapping[str, NDArray[Any]]


class Stateful(Protocol):
    """A part of a method that a state file carries."""

    def reset(self) -> None: ...

    def state(self) -> dict[str, NDArray[Any]]: ...

    def restore(self, state: Arrays) -> None: ...


def joined(parts: Mapping[str, Arrays]) -> dict[str, NDArray[Any]]:
    """The arrays of several parts under `part.array`; `section` takes one out again."""
    return {f"{part}.{name}": array for part, own in parts.items() for name, array in own.items()}


def section(state: Arrays, part: str) -> dict[str, NDArray[Any]]:
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }


def states_of(parts: Mapping[str, Stateful]) -> dict[str, NDArray[Any]]:
    return joined({name: part.state() for name, part in parts.items()})


def restore_all(parts: Mapping[str, Stateful], state: Arrays) -> None:
    for name, part in parts.items():
        part.restore(section(state, name))


_HALF = (1 << 64) - 1


def rng_to_array(rng: Generator) -> NDArray[np.uint64]:
    """A PCG64 generator's 128-bit numbers in halves, and its spare 32 bits."""
    state = rng.bit_generator.state
    numbers = (state["state"]["state"], state["state"]["inc"])
    halves = [half for number in numbers for half in (number >> 64, number & _HALF)]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def rng_from_array(numbers: NDArray[np.uint64]) -> Generator:
    a, b, c, d, has_uint32, uinteger = (int(number) for number in numbers)
    bits = PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": a << 64 | b, "inc": c << 64 | d},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return Generator(bits)


def save(path: str | Path, arrays: Arrays, model: str, method: str) -> None:
    """Write a state of the model with that fingerprint, atomically."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = Path(path)
    if not path.parent.is_dir():
        raise ZottaError(f"cannot write {path}: there is no folder {path.parent}")
    header = {"format": FORMAT_VERSION, "model": model, "method": method}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replacing(path) as temporary:
        header |= {"checksum": _checksum(contiguous, header)}
        try:
            save_file(contiguous, temporary, header)
        except SafetensorError as error:  # a full disk, for one
            raise ZottaError(f"cannot write {path}: {error}") from error


def load(path: str | Path, like: Arrays, model: str, method: str) -> dict[str, NDArray[Any]]:
    """Read a state that fits: of this model and method, whole, with arrays like the given ones."""
    header, arrays = _read(Path(path))
    if header.get("format") != FORMAT_VERSION:
        raise ZottaError(
            f"{path} has state format {header.get('format')}, this version reads {FORMAT_VERSION}: "
            "start with a new state file"
        )
    checksum = header.pop("checksum", "")
    if checksum != _checksum(arrays, header):
        raise ZottaError(f"{path} is damaged (checksum): delete it to start from the source")
    if header["model"] != model:
        raise ZottaError(f"{path} belongs to another model file: give each model its own state")
    if header["method"] != method:
        raise ZottaError(f"{path} is a state of method {header['method']}, not of {method}")
    if _shapes(arrays) != _shapes(like):
        raise ZottaError(
            f"{path} was made with other settings (layers or queue): use those, or a new state file"
        )
    return arrays


def _read(path: Path) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ZottaError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return dict(file.metadata() or {}), arrays
    except (SafetensorError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise ZottaError(f"{path} is damaged or no state file ({error}): delete it") from error
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


@contextmanager
def claim(path: str | Path) -> Iterator[None]:
    """Hold a state file for one process; a second one is refused at once.

    The lock is the operating system's, on a file of its own beside the state, and ends with the
    process however that ends.
    """
    lock = Path(path).with_name(f".{Path(path).name}.lock")
    handle = _locked(lock, path)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(handle)


def _locked(lock: Path, path: str | Path) -> int:
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ZottaError(f"cannot keep a state at {path}: {error.strerror}") from error
        try:
            _lock(handle)
        except OSError as error:
            os.close(handle)
            raise ZottaError(
                f"{path} is in use by another process: give each process a state file of its own"
            ) from error
        if _is_same(handle, lock):
            return handle
        os.close(handle)  # its holder removed it between our opening and locking it


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
