"""Requests become batches: answers come soon, learning happens on proper batches.

Every image is answered once, and learned from at most once, in batches of `batch_size`:

- background and off: requests are answered at once, those that came in meanwhile together; their
  images wait in `Lessons` until they make a batch, which the writer learns from beside the reader.
- inline: requests wait up to `max_wait` for a batch to fill, are learned from and then answered. A
  batch that does not fill in time, or finds the writer busy, is answered with the model as it is
  and learned from later, as in the background. So is one whose adaptation exceeds `deadline`, and
  every one while lessons are known to take longer than that.

All of this runs in the event loop, so it needs no locks; only the model's passes run in threads.
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
from zotta_edge.runtime.service.learning.learning_queue import Lessons
from zotta_edge.runtime.service.learning.worker import Learned, Writer, learn, part, read

log = logging.getLogger(__name__)

READER = "zotta-reader"  # the thread that answers
_KEPT_BATCHES = 4  # that may wait to be learned from


@dataclass(eq=False)
class _Asked:
    """One request's images [batch, C, H, W], and where its answer goes."""

    images: Floats
    learn: bool  # whether they may still be learned from
    arrived: float
    deadline: float
    answer: "asyncio.Future[Result]"


class Observer(Protocol):
    def answered(self, result: Result, seconds: float) -> None: ...

    def learned(self, learned: Learned) -> None: ...

    def dropped(self, images: int) -> None: ...


class Gatherer:
    def __init__(
        self, model: AdaptiveModel, writer: Writer, config: Config, observer: Observer
    ) -> None:
        self._model, self._writer, self._config, self._observer = model, writer, config, observer
        self._size = config.batch_size
        self._held: deque[_Asked] = deque()  # wait for a batch to fill
        self._ready: deque[_Asked] = deque()  # to be answered with the model as it is
        self.lessons = Lessons(_KEPT_BATCHES * self._size)
        self._reader = ThreadPoolExecutor(1, READER)
        self._epoch = 0  # images of an earlier one are no longer learned from
        self.learning = config.adapt != "off"  # False while paused, too
        self._hurrying = False
        self._pace = 0.0  # seconds that the last lesson took
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None

    async def answer(
        self, images: Floats, learn: bool = True, deadline: float | None = None
    ) -> Result:
        """Answer one request's images, with others that are there at the same time.

        `deadline` is the loop's time until which they wait for adaptation; None: as configured.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop.done():
            self._start(loop)
        learn = learn and self.learning and not self._hurrying
        now = loop.time()
        deadline = now + self._config.deadline if deadline is None else deadline
        asked = _Asked(images, learn, now, deadline, loop.create_future())
        in_time = self._pace <= self._config.deadline and now <= deadline
        inline = learn and in_time and self._config.adapt == "inline"
        (self._held if inline else self._ready).append(asked)
        self._wake.set()
        return await asked.answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """With the first request: an app that is mounted in another is told of no start."""
        self._wake, self._hurry = asyncio.Event(), loop.create_future()
        self._loop = loop.create_task(self._run())

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._wake.set)

        self._writer.on_done = wake

    def forget(self) -> None:
        """Give up what waits to be learned from: it belongs to another time."""
        self._epoch += 1
        self.lessons.clear()
        self._ready.extend(self._held)
        self._held.clear()
        for asked in self._ready:
            asked.learn = False
        if self._loop is not None:
            self._wake.set()

    def hurry(self) -> None:
        """Learn no more; whoever waits is answered with the model as it is."""
        self._hurrying, self.learning = True, False
        if self._loop is not None and not self._hurry.done():
            self._hurry.set_result(None)
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
            if group := self._due():
                await self._read(group)
            else:
                await self._rest()

    def _start_learning(self) -> None:
        """Give the idle writer a full batch, if there is one."""
        if len(self.lessons) >= self._size:
            self._teach(self.lessons.take(self._size), [])
        elif len(self.lessons) + _count(self._held) >= self._size:
            group = _take(self._held, self._size - len(self.lessons))
            self._teach(self.lessons.take(self._size), group)

    def _teach(self, earlier: list[Floats], group: list[_Asked]) -> None:
        images = earlier + [image for asked in group for image in asked.images]
        work = partial(learn, self._model, images, self._size, lambda: self._hurrying)
        self._spawn(self._finish(self._writer.submit(work), group, len(earlier), self._epoch))

    async def _finish(
        self, job: "Future[Learned]", group: list[_Asked], earlier: int, epoch: int
    ) -> None:
        """Wait for a lesson, and answer those of its images whose requests are still waiting."""
        lesson = asyncio.wrap_future(job)
        if group:
            left = group[0].deadline - asyncio.get_running_loop().time()
            await asyncio.wait(
                {lesson, self._hurry}, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED
            )
            if not lesson.done():
                self._answer_plainly(group)
                group = []
        try:
            learned = await lesson
        except Exception as error:
            log.error("adaptation failed: %s", error)
            self._answer_plainly(group)
        else:
            self._deliver(group, part(learned.result, earlier, len(learned.result.labels)))
            self._postpone(learned.rest, epoch)
            self._pace = learned.seconds / max(learned.batches, 1)
            self._observer.learned(learned)

    def _answer_plainly(self, group: list[_Asked]) -> None:
        """Without adaptation, soon; the writer has had these images."""
        for asked in group:
            asked.learn = False
        self._ready.extend(group)
        self._wake.set()

    def _due(self) -> list[_Asked]:
        """Requests to be answered now, at most a batch of them."""
        if self._held and (not self.learning or self._overdue() <= 0):
            self._ready.extend(self._held)
            self._held.clear()
        return _take(self._ready, self._size)

    def _overdue(self) -> float:
        """Seconds until the first held request has waited long enough."""
        now = asyncio.get_running_loop().time()
        return self._held[0].arrived + self._config.max_wait - now

    async def _rest(self) -> None:
        timeout = self._overdue() if self._held else None
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            return

    async def _read(self, group: list[_Asked]) -> None:
        epoch = self._epoch
        try:
            images = np.concatenate([asked.images for asked in group])
            work = partial(read, self._model, images, self._size)
            result = await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except Exception as error:
            if len(group) == 1:
                _fail(group, error)
            for asked in group if len(group) > 1 else ():  # who else is answered in a batch with it
                await self._read([asked])
            return
        self._deliver(group, result)
        self._postpone([image for asked in group if asked.learn for image in asked.images], epoch)

    def _postpone(self, images: list[Floats], epoch: int) -> None:
        if not self.learning or epoch != self._epoch:
            return
        try:
            dropped = self.lessons.add(images)
        except MemoryError:  # they have been answered; the next ones may find room
            dropped = len(images)
        if dropped:
            self._observer.dropped(dropped)

    def _deliver(self, group: list[_Asked], result: Result) -> None:
        at = 0
        for asked in group:
            end = at + len(asked.images)
            if not asked.answer.done():  # its client may have gone
                asked.answer.set_result(part(result, at, end))
            at = end
        if group:
            now = asyncio.get_running_loop().time()
            self._observer.answered(result, now - group[0].arrived)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _count(requests: Iterable[_Asked]) -> int:
    return sum(len(asked.images) for asked in requests)


def _take(requests: deque[_Asked], count: int) -> list[_Asked]:
    """Requests from the front until they hold `count` images; none is torn apart."""
    taken: list[_Asked] = []
    while requests and count > 0:
        taken.append(requests.popleft())
        count -= len(taken[-1].images)
    return taken


def _fail(group: Iterable[_Asked], error: Exception) -> None:
    for asked in group:
        if not asked.answer.done():
            asked.answer.set_exception(error)
