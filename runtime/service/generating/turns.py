"""One thread for all answers, which take turns: a token each, so a long one delays no short one.

The same thread adapts, so an answer never sees half an update.
"""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
THREAD = "zotta-generate"


class Turns:
    """Runs iterators in a thread, one piece of each in turn.

    Examples
    --------
    >>> async def both() -> list[str]:
    ...     turns = Turns()
    ...     return [piece async for piece in turns.run(iter(["a", "b"]))]
    >>> asyncio.run(both())
    ['a', 'b']
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Turn[Any] | None] = queue.SimpleQueue()
        self._live = 0
        # A daemon: a slow update must not keep the process from exiting.
        self.thread = threading.Thread(target=self._work, name=THREAD, daemon=True)
        self.thread.start()

    @property
    def busy(self) -> bool:
        return self._live > 0 or not self._waiting.empty()

    async def run(self, pieces: Iterator[T]) -> AsyncGenerator[T]:
        """The pieces as they come; one that nobody waits for any more is dropped."""
        turn = _Turn(pieces)
        self._waiting.put(turn)
        try:
            while (got := await turn.pieces_out.get()) is not _END:
                if isinstance(got, BaseException):
                    raise got
                yield got
        finally:
            turn.dropped = True

    async def call(self, work: Callable[[], T]) -> T:
        """Do something to the model between two pieces."""
        async for result in self.run(work() for _ in range(1)):
            found = result
        return found

    def close(self) -> None:
        self._waiting.put(None)

    def _work(self) -> None:
        while (turn := self._waiting.get()) is not None:
            self._live = 1
            if turn.take():
                self._waiting.put(turn)
            self._live = 0


_END = object()


class _Turn(Generic[T]):
    def __init__(self, pieces: Iterator[T]) -> None:
        self._pieces, self._loop = pieces, asyncio.get_running_loop()
        self.pieces_out: asyncio.Queue[Any] = asyncio.Queue()
        self.dropped = False

    def take(self) -> bool:
        """Make one piece; False: there are no more."""
        if self.dropped:
            close = getattr(self._pieces, "close", None)  # here, where its locks were taken
            if close is not None:
                close()
            return False
        try:
            self._put(next(self._pieces))
        except StopIteration:
            self._put(_END)
            return False
        except BaseException as error:
            self._put(error)
            return False
        return True

    def _put(self, piece: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.pieces_out.put_nowait, piece)
