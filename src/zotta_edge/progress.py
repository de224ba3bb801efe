"""Progress on a terminal, silence in a pipe."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
_INTERVAL = 0.1  # seconds between two drawings


class Progress:
    """One line on stderr that says what is done, how much of it, and how long it will take.

    >>> with Progress("clustering", total=12) as progress:
    ...     progress.advance(note="block 3")
    """

    def __init__(self, what: str, total: int | None = None) -> None:
        self.what, self.total, self.done, self.note = what, total, 0, ""
        self._started = time.monotonic()
        self._drawn = 0.0
        self._visible = sys.stderr.isatty()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        self.note = note
        now = time.monotonic()
        if self._visible and now - self._drawn >= _INTERVAL:
            self._drawn = now
            sys.stderr.write(f"\r\x1b[K{self._line(now - self._started)}")
            sys.stderr.flush()

    def _line(self, elapsed: float) -> str:
        count = f"{self.done}/{self.total}" if self.total else str(self.done)
        left = (
            f", {elapsed / self.done * (self.total - self.done):.0f} s left"
            if self.total and self.done
            else ""
        )
        return f"{self.what} {count}{left}{'  ' + self.note if self.note else ''}"


def tracked(items: Iterable[T], what: str) -> Iterator[T]:
    """Iterate over `items` with a progress line."""
    with Progress(what, len(items) if isinstance(items, Sized) else None) as progress:
        for item in items:
            yield item
            progress.advance()
