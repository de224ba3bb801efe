"""Ways in which a disk fails, for a process that is about to end anyway."""

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

NUMBERS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)
CALLS = frozenset({"open", "os.rename", "os.remove", "os.chmod", "os.mkdir", "os.utime", "fsync"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SIZES = (0, 1, 100, 4096, 8192, 16384, 32768, 65536, 131072, 262144)  # bytes that fit in a file
PAGES = (16, 32, 64, 96, 112, 128, 144, 160, 176, 192)  # that the disk has, of 4096 bytes each
_MOUNTS, _USERS = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
_PRIVATE = 1 << 18 | 1 << 14  # MS_PRIVATE, MS_REC
_READ_ONLY = 1 << 5 | 1  # MS_REMOUNT, MS_RDONLY
_NOBODY = 65534


def _nothing(folder: Path) -> None: ...


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `mount` before the folder is filled, `begin` before the work."""

    name: str
    begin: Callable[[Path], Any] = _nothing
    mount: Callable[[Path], Any] = _nothing
    lasting: bool = False  # so that what is half-written cannot be removed either


class Calls:
    """An audit hook that lets one call that writes fail, or all from one on."""

    def __init__(self, number: int, at: int, lasting: bool, folder: Path) -> None:
        self._folder, self._number, self._at, self._lasting = str(folder), number, at, lasting
        self.count, self.off = 0, False
        self._sync, os.fsync = os.fsync, self._fsync
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.off or event not in CALLS or (event == "open" and not arguments[2] & _WRITING):
            return
        path = arguments[0]
        if not isinstance(path, str | bytes) or not os.fsdecode(path).startswith(self._folder):
            return
        self.count += 1
        if self.count == self._at or (self._lasting and self.count > self._at > 0):
            raise OSError(self._number, os.strerror(self._number), path)

    def _fsync(self, handle: int) -> None:
        sys.audit("fsync", self._folder)
        self._sync(handle)


def counting() -> Fault:
    """No fault: `begin` returns the calls that could have failed."""
    return Fault("none", partial(Calls, 0, 0, False))


def every(calls: int, step: int = 1) -> Iterator[Fault]:
    """Each of an operation's calls in turn, and all kinds of full and forbidden disks."""
    for at in range(1, calls + 1, step):
        for number in NUMBERS:
            name = f"{errno.errorcode[number]} at call {at}"
            yield Fault(name, partial(Calls, number, at, False))
            yield Fault(f"{name} and later", partial(Calls, number, at, True), lasting=True)
    for size in SIZES[::step]:
        yield Fault(f"{size} bytes a file", partial(_limit, size))
    if os.getuid() == 0:
        yield Fault("somebody else's folder", _foreign, lasting=True)
    if _may_mount():
        yield Fault("read-only", _read_only, partial(_mount, 1024), lasting=True)
        for pages in PAGES[::step]:
            yield Fault(f"{pages} pages left", partial(_fill, pages), partial(_mount, 1024))


def _limit(size: int, folder: Path) -> None:
    """Python ignores the signal that goes with it: writes beyond fail with EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def lift() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _foreign(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


def _mount(pages: int, folder: Path) -> None:
    """A small disk at the folder, that only this process sees."""
    _own_namespace()
    _call("mount", b"none", bytes(folder), b"tmpfs", 0, f"size={4096 * pages}".encode())


def _read_only(folder: Path) -> None:
    _call("mount", b"none", bytes(folder), None, _READ_ONLY, None)


def _fill(pages: int, folder: Path) -> None:
    """Leave so many pages."""
    room = os.statvfs(folder).f_bavail - pages
    with (folder / "filler").open("wb") as filler:
        filler.write(bytes(4096 * max(0, room)))


@cache
def _may_mount() -> bool:
    if sys.platform != "linux":
        return False
    process = os.fork()
    if not process:
        try:
            _own_namespace()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(process, 0)[1] == 0


def _own_namespace() -> None:
    _call("unshare", _MOUNTS if os.getuid() == 0 else _MOUNTS | _USERS)
    _call("mount", b"none", b"/", None, _PRIVATE, None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
