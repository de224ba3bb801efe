"""Cut models kept beside the model they come from, so that only the first start has to cut.

Other graphs that are made from a model on the device are kept in the same way, as cones without a
stem. A cut is three files named by a fingerprint of all that it depends on: two models and a record
with their checksums, written last. Writers of one name write the same bytes, each file is put in
place whole, and a reader that finds anything else than the record promises cuts again; so processes
may start, and die, at any moment.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing, sha256
from zotta_edge.version import __version__

if TYPE_CHECKING:  # needs the onnx package, which a start from the cache does not load
    from zotta_edge.runtime.engine.cut import Halves

FOLDER = ".zotta-cache"
KEPT = 6  # cuts of one model's name, the most recently used
_ABANDONED = 3600.0  # seconds after which a temporary file has no writer any more
_BROKEN = (  # what a graph that does not hang together leads to
    *(KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, StopIteration),
    *(ZeroDivisionError, RuntimeError),
)
_REVISION = 4  # of what a cut holds: raise it when `cut` or the cost model changes
_KEY = 24  # hexadecimal digits of a fingerprint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cut:
    """Where the two halves are: files, or bytes where nothing could be written."""

    stem: Path | bytes | None  # None: no work precedes the affines
    cone: Path | bytes
    cone_share: float  # of a full pass's work


Rewrite = Callable[[bytes, str], bytes]  # a model file's content and path -> another model
Halve = Callable[[bytes, str], "Halves"]  # -> another model in two halves


def fingerprint_of(path: Path) -> str:
    """The SHA-256 of a model file."""
    if not path.is_file():
        raise ZottaError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    return sha256(path)


def find_or_cut(path: Path, chosen: Sequence[int] | None, fingerprint: str | None = None) -> Cut:
    """The cut of the model at `path` before the chosen layers (None: as calibrated).

    `fingerprint` is the file's SHA-256, where it is known already.
    """

    def make(content: bytes) -> "Halves":
        from zotta_edge.runtime.engine.cut import cut

        return cut(content, chosen, str(path))

    # `None` gets a name of its own: the file alone says what was calibrated, unread.
    what = "calibrated" if chosen is None else str(sorted(set(chosen)))
    return _find_or_make(path, what, make, fingerprint)


def find_or_rewrite(
    path: Path, purpose: str, rewrite: Rewrite, fingerprint: str | None = None
) -> Path | bytes:
    """Another model made from the one at `path`, kept under its purpose."""

    def make(content: bytes) -> "Halves":
        from zotta_edge.runtime.engine.cut import Halves

        return Halves(None, rewrite(content, str(path)), 1.0)

    return _find_or_make(path, purpose, make, fingerprint).cone


def find_or_halve(path: Path, purpose: str, halve: Halve, fingerprint: str | None = None) -> Cut:
    """Another model in two halves made from the one at `path`, kept under its purpose."""
    return _find_or_make(path, purpose, lambda content: halve(content, str(path)), fingerprint)


def _find_or_make(
    path: Path, what: str, make: Callable[[bytes], "Halves"], fingerprint: str | None
) -> Cut:
    name = _name(path, fingerprint or fingerprint_of(path), what)
    for folder in _folders(path):
        if cut := _load(folder, name):
            return cut
    return _make(path, what, make)


def _make(path: Path, what: str, make: Callable[[bytes], "Halves"]) -> Cut:
    content = path.read_bytes()
    name = _name(path, hashlib.sha256(content).hexdigest(), what)
    try:
        halves = make(content)
    except _BROKEN as error:
        detail = " ".join(str(error).split())[:200]
        raise ZottaError(
            f"{path} is damaged ({type(error).__name__}: {detail}): copy or export it again"
        ) from error
    for folder in _folders(path):
        try:
            _store(folder, name, halves)
        except (ZottaError, OSError) as error:
            log.info("no cut is kept in %s: %s", folder, error)
        else:
            if cut := _load(folder, name):
                return cut
    return Cut(halves.stem, halves.cone, halves.cone_share)


def _folders(path: Path) -> Iterator[Path]:
    """Beside the model; where that cannot be written, in the user's cache."""
    yield path.resolve().parent / FOLDER
    if user := _user_cache():
        yield user / "zotta-edge"


def _user_cache() -> Path | None:
    if sys.platform == "win32":
        given = os.environ.get("LOCALAPPDATA")
    else:
        given = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(given) if given else Path.home() / ".cache"
    except RuntimeError:  # no home
        return None


def _name(path: Path, fingerprint: str, what: str) -> str:
    key = hashlib.sha256(f"{fingerprint} {what} {__version__} {_REVISION}".encode()).hexdigest()
    return f"{path.stem}.{key[:_KEY]}"


def _load(folder: Path, name: str) -> Cut | None:
    """A cut whose files are what their record says; None: there is no such cut."""
    record = folder / f"{name}.json"
    try:
        entry = json.loads(record.read_bytes())
        halves = {half: folder / f"{name}.{half}.onnx" for half in entry["sha256"]}
        if any(sha256(file) != entry["sha256"][half] for half, file in halves.items()):
            return None
        cut = Cut(halves.get("stem"), halves["cone"], float(entry["cone_share"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    _mark_used(record)
    return cut


def _mark_used(record: Path) -> None:
    with contextlib.suppress(OSError):  # a folder that may only be read
        record.touch()


def _store(folder: Path, name: str, halves: "Halves") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"cone": halves.cone} | ({"stem": halves.stem} if halves.stem else {})
    for half, content in contents.items():
        with replacing(folder / f"{name}.{half}.onnx") as temporary:
            temporary.write_bytes(content)
    sums = {half: hashlib.sha256(content).hexdigest() for half, content in contents.items()}
    with replacing(folder / f"{name}.json") as temporary:
        temporary.write_text(json.dumps({"cone_share": halves.cone_share, "sha256": sums}))
    with contextlib.suppress(OSError):  # another process prunes as well
        _prune(folder, model=name.rsplit(".", 1)[0])


def _prune(folder: Path, model: str) -> None:
    """Forget all but the last used cuts of one model's name, and what killed writers left."""
    entry = re.compile(rf"\.?({re.escape(model)}\.[0-9a-f]{{{_KEY}}})\.")
    files = {file: match[1] for file in folder.iterdir() if (match := entry.match(file.name))}
    ages = {file: time.time() - file.stat().st_mtime for file in files}
    unused = {name: min(ages[f] for f in files if files[f] == name) for name in files.values()}
    kept = sorted(unused, key=unused.__getitem__)[:KEPT]
    for file, name in files.items():
        if name not in kept or (file.suffix == ".part" and ages[file] > _ABANDONED):
            file.unlink(missing_ok=True)
