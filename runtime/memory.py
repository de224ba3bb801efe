"""Peak memory of one piece of work, and memory given back, on Linux; elsewhere neither."""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # see proc(5)


def with_peak(work: Callable[[], T]) -> tuple[T, int | None]:
    """Run `work`; its result, and the highest resident size in bytes while it ran."""
    known = _reset()
    result = work()
    return result, _peak() if known else None


def _reset() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _peak() -> int | None:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def give_back() -> None:
    """Return what was freed to the system: glibc keeps it for the next block of that size."""
    with suppress(AttributeError, OSError, TypeError):  # another C library, another system
        ctypes.CDLL(None).malloc_trim(0)
