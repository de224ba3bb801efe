"""Groups requests into batches, so that answers come soon and learning sees full batches.

Every image is answered once, and learned from at most once, in batches of `batch_size`:

- background and off: requests are answered at once, together with those that arrived meanwhile.
  Their images wait in the `LearningQueue` until they fill a batch, which the writer thread learns
  from while the reader thread goes on answering.
- inline: requests wait up to `max_wait` for a batch to fill; the model adapts to it, then answers
  it. If the batch does not fill in time, or the writer is busy, or adaptation takes longer than
  `deadline`, the current model answers and the images are learned from later, as in background
  mode. While batches are known to take longer than `deadline`, all requests go that way.

Everything here runs in the event loop and needs no locks; only the model's passes run in threads.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from zotta_edge.format import Floats
from zotta_edge.runtime.adaptive import AdaptiveModel, Result
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http.errors import busy
from zotta_edge.runtime.service.learning.learning_queue import LearningQueue
from zotta_edge.runtime.service.learning.worker import Learned, Writer, learn, part, read

log = logging.getLogger(__name__)

READER = "zotta-reader"  # the thread that answers
_QUEUED_BATCHES = 4  # at most, waiting to be learned from


@dataclass(eq=False)
class _Request:
    """One request's images [batch, C, H, W], and where its answer goes."""

    images: Floats
    learn: bool  # whether they may still be learned from
    arrived: float
    answer: "asyncio.Future[Result]"


class Observer(Protocol):
    """Is told what the batcher has done."""

    def answered(self, result: Result, seconds: float) -> None: ...

    def learned(self, learned: Learned) -> None: ...

    def dropped(self, images: int) -> None: ...


class Batcher:
    """Answers requests in groups and gives full batches to the writer.

    Parameters
    ----------
    model
        Answers in the reader thread, learns in the writer's.
    writer
        The only thread that changes the model.
    config
        Its mode, batch size, waiting time and deadline.
    observer
        Is told of answers, learned batches and dropped images.
    """

    def __init__(
        self, model: AdaptiveModel, writer: Writer, config: Config, observer: Observer
    ) -> None:
        self._model, self._writer, self._config, self._observer = model, writer, config, observer
        self._size = config.batch_size
        self._held: deque[_Request] = deque()  # waiting for a batch to fill
        self._ready: deque[_Request] = deque()  # to be answered by the current model
        self.queue = LearningQueue(_QUEUED_BATCHES * self._size)
        self._reader = ThreadPoolExecutor(1, READER)
        self._epoch = 0  # grows with every reset; images from before one are not learned
        self.learning = config.adapt != "off"  # False while paused, too
        self._draining = False
        self._batch_seconds = 0.0  # how long the last batch took to learn
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None

    async def answer(self, images: Floats, learn: bool = True) -> Result:
        """Answer one request's images, grouped with those of other requests."""
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop.done():
            self._start(loop)
        learn = learn and self.learning and not self._draining
        request = _Request(images, learn, loop.time(), loop.create_future())
        in_time = self._batch_seconds <= self._config.deadline
        inline = learn and in_time and self._config.adapt == "inline"
        (self._held if inline else self._ready).append(request)
        self._wake.set()
        return await request.answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with the first request: a mounted app gets no start-up event."""
        self._wake, self._drain_begun = asyncio.Event(), loop.create_future()
        self._loop = loop.create_task(self._run())

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._wake.set)

        self._writer.on_done = wake

    def forget(self) -> None:
        """Drop the images that wait to be learned from, after a reset or restore."""
        self._epoch += 1
        self.queue.clear()
        self._ready.extend(self._held)
        self._held.clear()
        for request in self._ready:
            request.learn = False
        if self._loop is not None:
            self._wake.set()

    def drain(self) -> None:
        """Stop learning; waiting requests are answered by the current model."""
        self._draining, self.learning = True, False
        if self._loop is not None and not self._drain_begun.done():
            self._drain_begun.set_result(None)
            self._wake.set()

    def close(self) -> None:
        for task in (*self._tasks, self._loop):
            if task is not None:
                task.cancel()
        _fail([*self._held, *self._ready], busy("the service is stopping"))
        self._reader.shutdown(wait=False)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if self.learning and not self._writer.busy:
                self._start_learning()
            if group := self._next_group():
                await self._read(group)
            else:
                await self._wait()

    def _start_learning(self) -> None:
        """Give the idle writer a full batch, if there is one."""
        if len(self.queue) >= self._size:
            self._submit(self.queue.take(self._size), [])
        elif len(self.queue) + _count(self._held) >= self._size:
            group = _take(self._held, self._size - len(self.queue))
            self._submit(self.queue.take(self._size), group)

    def _submit(self, earlier: list[Floats], group: list[_Request]) -> None:
        images = earlier + [image for request in group for image in request.images]
        work = partial(learn, self._model, images, self._size, lambda: self._draining)
        self._spawn(self._finish(self._writer.submit(work), group, len(earlier), self._epoch))

    async def _finish(
        self, job: "Future[Learned]", group: list[_Request], earlier: int, epoch: int
    ) -> None:
        """Wait until a batch is learned, then answer the requests in it that still wait."""
        learning = asyncio.wrap_future(job)
        if group:
            left = group[0].arrived + self._config.deadline - asyncio.get_running_loop().time()
            await asyncio.wait(
                {learning, self._drain_begun},
                timeout=max(left, 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not learning.done():
                self._answer_unadapted(group)
                group = []
        try:
            learned = await learning
        except Exception as error:
            log.error("adaptation failed: %s", error)
            self._answer_unadapted(group)
        else:
            self._deliver(group, part(learned.result, earlier, len(learned.result.labels)))
            self._postpone(learned.rest, epoch)
            self._batch_seconds = learned.seconds / max(learned.batches, 1)
            self._observer.learned(learned)

    def _answer_unadapted(self, group: list[_Request]) -> None:
        """Let the reader answer them; the writer has their images already."""
        for request in group:
            request.learn = False
        self._ready.extend(group)
        self._wake.set()

    def _next_group(self) -> list[_Request]:
        """The requests to answer now, about a batch of them."""
        if self._held and (not self.learning or self._patience() <= 0):
            self._ready.extend(self._held)
            self._held.clear()
        return _take(self._ready, self._size)

    def _patience(self) -> float:
        """Seconds that the first held request may still wait."""
        now = asyncio.get_running_loop().time()
        return self._held[0].arrived + self._config.max_wait - now

    async def _wait(self) -> None:
        timeout = self._patience() if self._held else None
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            return

    async def _read(self, group: list[_Request]) -> None:
        epoch = self._epoch
        try:
            images = np.concatenate([request.images for request in group])
            work = partial(read, self._model, images, self._size)
            result = await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except Exception as error:
            _fail(group, error)
            return
        self._deliver(group, result)
        self._postpone(
            [image for request in group if request.learn for image in request.images], epoch
        )

    def _postpone(self, images: list[Floats], epoch: int) -> None:
        if not self.learning or epoch != self._epoch:
            return
        try:
            dropped = self.queue.add(images)
        except MemoryError:  # answered already, and later images may fit again
            dropped = len(images)
        if dropped:
            self._observer.dropped(dropped)

    def _deliver(self, group: list[_Request], result: Result) -> None:
        at = 0
        for request in group:
            end = at + len(request.images)
            if not request.answer.done():  # its client may have gone
                request.answer.set_result(part(result, at, end))
            at = end
        if group:
            now = asyncio.get_running_loop().time()
            self._observer.answered(result, now - group[0].arrived)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _count(requests: Iterable[_Request]) -> int:
    return sum(len(request.images) for request in requests)


def _take(requests: deque[_Request], count: int) -> list[_Request]:
    """Remove whole requests from the front until they hold `count` images."""
    taken: list[_Request] = []
    while requests and count > 0:
        taken.append(requests.popleft())
        count -= len(taken[-1].images)
    return taken


def _fail(group: Iterable[_Request], error: Exception) -> None:
    for request in group:
        if not request.answer.done():
            request.answer.set_exception(error)
