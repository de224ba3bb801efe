"""Hold a state file for one process."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zotta_edge.errors import ZottaError


@contextmanager
def claim(path: str | Path) -> Iterator[None]:
    """Hold a state file for one process; a second one is refused at once.

    The lock is the operating system's, on a file of its own beside the state, and ends with the
    process however that ends.
    """
    if not Path(path).name:  # `.` or `/`
        raise ZottaError(f"cannot keep a state at {path}: it is a folder")
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
