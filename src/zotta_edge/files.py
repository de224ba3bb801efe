"""Files that are either the old ones or the new ones, never something in between."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zotta_edge.errors import ZottaError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; put it in place when the block ends without an error.

    >>> with replacing("preds.csv") as temporary:
    ...     temporary.write_text("...")
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise ZottaError(f"cannot write {path}: {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise ZottaError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Refuse, before minutes of work, a file that `replacing` could not put in place."""
    path = Path(path)
    if path.is_dir():
        raise ZottaError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise ZottaError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ZottaError(f"cannot write {path}: no permission in {path.parent}")


def sha256(path: str | Path) -> str:
    """The fingerprint of a file's content."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
