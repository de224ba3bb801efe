"""What was learned, on disk: the current state, and snapshots that can be restored."""

import logging
import re
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.state.lock import claim

log = logging.getLogger(__name__)

KEPT = 20  # snapshots; another removes the oldest
_ID = re.compile(r"(\d{8}T\d{9}Z)-(\d{1,12})")  # when, and after how many steps
_WHEN = "%Y%m%dT%H%M%S%f"


@dataclass(frozen=True)
class Snapshot:
    """A saved state; its id holds when it was taken and after how many steps."""

    id: str
    time: float  # seconds since 1970
    steps: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Saved(Protocol):
    """A model whose state can be kept in a file."""

    def save_state(self, path: str | Path) -> None: ...

    def load_state(self, path: str | Path) -> None: ...

    def status(self) -> dict[str, Any]: ...


class Store:
    """The states of a model in a folder.

    Methods that take the model must run in the writer's thread.

    Parameters
    ----------
    folder
        Where they are kept; None: in a temporary folder, which lasts as long as the process.
    name
        The model's, which the files begin with.
    save_every
        Steps between two saves of the current state.
    """

    def __init__(self, folder: Path | None, name: str, save_every: int) -> None:
        self._save_every, self._saved_steps = save_every, 0
        self._stack = ExitStack()
        self._current: Path | None = None
        if folder is None:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="zotta-")))
        else:
            self._current = folder / f"{name}.state"
            _make(folder)
            self._stack.enter_context(claim(self._current))
        self._snapshots = folder / f"{name}.snapshots"
        _make(self._snapshots)

    def close(self) -> None:
        self._stack.close()

    def resume(self, model: Saved) -> str | None:
        """Load the last state; a file that cannot be used is renamed and kept.

        Then the model starts from the source, for the reason that is returned.
        """
        if self._current is None or not self._current.exists():
            return None
        try:
            model.load_state(self._current)
        except ZottaError as error:
            aside = self._current.with_suffix(f".unusable-{time.time_ns() // 10**6}")
            with suppress(OSError):
                self._current.replace(aside)
            log.warning("starting from the source, old state kept as %s: %s", aside.name, error)
            return f"the saved state could not be used and is kept as {aside.name}"
        self._saved_steps = _steps(model)
        log.info("resumed after %d steps", self._saved_steps)
        return None

    def save_if_due(self, model: Saved) -> None:
        if abs(_steps(model) - self._saved_steps) >= self._save_every:
            self.save(model)

    def save(self, model: Saved) -> None:
        """Save the current state; a full disk is no reason to stop answering."""
        self._saved_steps = _steps(model)
        if self._current is None:
            return
        try:
            model.save_state(self._current)
        except ZottaError as error:
            log.error("%s", error)

    def snapshots(self) -> list[Snapshot]:
        """Newest first."""
        files = self._snapshots.glob("*.state")
        snapshots = [snapshot for path in files if (snapshot := _snapshot(path))]
        return sorted(snapshots, key=lambda snapshot: snapshot.id, reverse=True)

    def take(self, model: Saved) -> Snapshot:
        now = datetime.now(UTC)
        name = f"{now.strftime(_WHEN)[:-3]}Z-{_steps(model)}"
        path = self._path(name)
        try:
            model.save_state(path)
        except ZottaError as error:
            log.error("%s", error)
            raise ServiceError(
                507, "the snapshot could not be written: see the service's log"
            ) from None
        # The new snapshot stays, even if the clock went back and it looks like the oldest.
        others = [snapshot for snapshot in self.snapshots() if snapshot.id != name]
        for old in others[KEPT - 1 :]:
            with suppress(OSError):  # not ours to remove
                self._path(old.id).unlink()
        taken = _snapshot(path)
        assert taken is not None
        return taken

    def restore(self, model: Saved, name: str) -> None:
        path = self._path(name)
        if not path.is_file():
            raise ServiceError(404, f"no snapshot is called {name}")
        try:
            model.load_state(path)
        except ZottaError as error:
            log.error("%s", error)
            raise ServiceError(
                409, f"snapshot {name} does not fit this model: see the log"
            ) from None
        self.save(model)

    def _path(self, name: str) -> Path:
        """The file of a snapshot; only names that we could have made lead to a file."""
        if not _ID.fullmatch(name):
            raise ServiceError(404, "no such snapshot")
        return self._snapshots / f"{name}.state"


def _snapshot(path: Path) -> Snapshot | None:
    name = _ID.fullmatch(path.stem)
    if name is None or not path.is_file():
        return None
    try:
        when = datetime.strptime(name[1], f"{_WHEN}Z").replace(tzinfo=UTC)
        return Snapshot(path.stem, when.timestamp(), int(name[2]), path.stat().st_size)
    except (ValueError, FileNotFoundError):  # no such day, or removed a moment ago
        return None


def _steps(model: Saved) -> int:
    """Updates made so far; methods without steps count batches, or prompts."""
    status = model.status()
    return int(next(status[name] for name in ("steps", "batches", "prompts") if name in status))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ZottaError(f"cannot keep states in {folder}: {error.strerror or error}") from error
