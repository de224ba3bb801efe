"""Ctrl-C between two batches, never inside an update."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# SIGHUP: the terminal was closed; Windows has none.
ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that is set by the first Ctrl-C, SIGTERM or SIGHUP; the second stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread may handle signals
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in ENDING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
