"""Files that are either the old ones or the new ones, never something in between."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zotta_edge.errors import ZottaError

_PART = ".part"
_TEXT_BYTES = 64 * 2**20  # far more than a list of a million images


def read_text(path: str | Path, name: str = "", encoding: str = "utf-8") -> str:
    """A text file of up to 64 MB, or one line that says why not; `name` is what the error calls it.

    >>> read_text("/dev/zero")
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: cannot read /dev/zero: it is larger than 64 MB
    """
    name = name or str(path)
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(_TEXT_BYTES + 1)
        if len(content) > _TEXT_BYTES:
            raise ZottaError(f"cannot read {name}: it is larger than {_TEXT_BYTES >> 20} MB")
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ZottaError(f"cannot read {name}: it is no text ({error.reason})") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a null in it
        raise ZottaError(f"cannot read {name}: {getattr(error, 'strerror', error)}") from error


def check_file(path: str | Path) -> None:
    """Refuse what a reader would wait for, or never come to an end of: a pipe, a device."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ZottaError(f"{path} is not a file")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; put it in place when the block ends without an error.

    >>> with replacing("preds.csv") as temporary:
    ...     temporary.write_text("image,label")
    11
    >>> Path("preds.csv").read_text()
    'image,label'
    """
    path = Path(path)
    check_replaceable(path)
    try:
        _remove_abandoned(path)
        handle, temporary = _locked_temporary(path)
    except OSError as error:
        raise ZottaError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise ZottaError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # then the next writer removes it
            temporary.unlink(missing_ok=True)
        os.close(handle)


def _locked_temporary(path: Path) -> tuple[int, Path]:
    """A new file that stays locked until its handle is closed: `_remove_abandoned` spares it."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
        _lock(handle)
        if os.path.exists(name):
            return handle, Path(name)
        os.close(handle)  # taken for abandoned between its creation and its lock


def _remove_abandoned(path: Path) -> None:
    """Temporary files of this one whose writers were killed: nobody holds their lock."""
    for entry in os.scandir(path.parent):
        if not (entry.name.startswith(f".{path.name}.") and entry.name.endswith(_PART)):
            continue
        with suppress(OSError):  # another process removes it as well, or may not be ours
            handle = os.open(entry.path, os.O_RDWR | os.O_NONBLOCK)
            try:
                if _lock(handle):
                    os.unlink(entry.path)
            finally:
                os.close(handle)


if sys.platform == "win32":  # there, an open file cannot be replaced, nor a locked one

    def _lock(handle: int) -> bool:
        return False

else:
    import fcntl

    def _lock(handle: int) -> bool:
        """The operating system's lock, which ends with its process; whether it was free."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def check_writable(path: str | Path) -> None:
    """Refuse, before minutes of work, a file that `replacing` could not put in place."""
    path = Path(path)
    check_replaceable(path)
    if not path.parent.is_dir():
        raise ZottaError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ZottaError(f"cannot write {path}: no permission in {path.parent}")


def check_replaceable(path: Path) -> None:
    """Refuse a folder, and above all a device: as root, /dev/null would become a file for all."""
    if path.is_dir():
        raise ZottaError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise ZottaError(f"cannot write {path}: it is no file that could be replaced")


def sha256(path: str | Path) -> str:
    """The fingerprint of a file's content."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
