"""How far long work has come: a line that changes on a terminal, now and then a line in a log.

Where stderr is no terminal, the first line comes after ten seconds, and another whenever both ten
seconds have passed and five percent were done since the last: none for work of a few seconds, about
twenty for any other. Work of unknown length reports once a minute.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
_REDRAW = 0.1  # seconds between two drawings on a terminal
_SECONDS, _SHARE = 10.0, 0.05  # between two lines of a log
_ENDLESS_SECONDS = 60.0  # the same where the length is not known


class Progress:
    """What is being done, how much of it is done, and how long the rest will take, on stderr.

    Parameters
    ----------
    what
        The work, as in "clustering".
    total
        How many steps it has; None where nobody knows.
    hint
        What to know about it while it runs, such as that it may be interrupted.
    clock
        Seconds since any moment.

    Examples
    --------
    >>> with Progress("clustering", total=12) as progress:
    ...     progress.advance(note="block 3")
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        hint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.hint, self.done, self.note = what, total, hint, 0, ""
        self._clock, self._started = clock, clock()
        self._earlier = 0  # steps that were done before this run
        self._shown, self._next = self._started, 0.0  # when, and the step before which not again
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_terminal:
            _write("\r\x1b[K")

    def skip(self, count: int) -> None:
        """Count steps that an earlier run has done; they say nothing about the time left."""
        self.done += count
        self._earlier += count

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count steps as done; `note` is shown beside them."""
        self.done += count
        self.note = note
        now = self._clock()
        if self._is_due(now):
            self._shown, self._next = now, self.done + _SHARE * (self.total or 0)
            line = self._line(now - self._started)
            _write(f"\r\x1b[K{line}" if self._on_terminal else f"{line}\n")

    def _is_due(self, now: float) -> bool:
        passed = now - self._shown
        if self._on_terminal:
            return passed >= _REDRAW
        if not self.total:
            return passed >= _ENDLESS_SECONDS
        return passed >= _SECONDS and self.done >= self._next

    def _line(self, elapsed: float) -> str:
        parts = [f"{self.what} {self.done}{f'/{self.total}' if self.total else ''}"]
        own = self.done - self._earlier
        if self.total and own:
            left = duration(elapsed / own * (self.total - self.done))
            parts.append(f"{100 * self.done // self.total} %, {left} left")
        return "  ".join(filter(None, [", ".join(parts), self.note, self.hint]))


def tracked(items: Iterable[T], what: str) -> Iterator[T]:
    """Iterate over `items` with a progress line."""
    with Progress(what, len(items) if isinstance(items, Sized) else None) as progress:
        for item in items:
            yield item
            progress.advance()


def duration(seconds: float) -> str:
    """A time for people.

    Examples
    --------
    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
