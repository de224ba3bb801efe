"""A decoder that is served: answering, learning, saving and reporting, without HTTP."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, ClassVar, TypeVar

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.json_numbers import finite
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Prompt, check_prompt, longest
from zotta_edge.runtime.generate.questions import Question
from zotta_edge.runtime.generate.stops import before
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.generating.turns import Turns
from zotta_edge.runtime.service.http import generate_protocol as protocol
from zotta_edge.runtime.service.learning.snapshots import Snapshot
from zotta_edge.runtime.service.observe.event_log import EventLog
from zotta_edge.runtime.service.observe.metrics import Metrics
from zotta_edge.runtime.service.served import PREPARE, Served

log = logging.getLogger(__name__)

T = TypeVar("T")
_LAST_SAVE = 3.0  # seconds that a shutdown waits for the tokens under way
_POINTS = 300  # of the history
# What the dashboard shows of a classifier and a decoder does not have.
_UNMEASURED: dict[str, Any] = {
    **dict.fromkeys(("phase", "drift", "significance", "distance", "filter", "entropy")),
    **dict.fromkeys(("accuracy", "class_memory")),
    **dict.fromkeys(("steps", "images", "batches", "waiting", "holds"), 0),
    **{"layers": [], "recent": [], "guard": {}, "held": False},
}


class GenerateService(Served):
    """A decoder that is served.

    One request at a time learns: those that find it busy are answered by the model as it is.

    Parameters
    ----------
    model
        Belongs to the service from now on: only its thread may change it.
    name, config
        As for `Served`.
    """

    extensions: ClassVar[tuple[str, ...]] = ("generate",)

    def __init__(self, model: AdaptiveDecoder, name: str, config: Config) -> None:
        super().__init__(name, config, model.method != "none")
        self.model = model
        self.learning = self.mode != "off"
        self._adapting = self._proven = self._paused = False
        self.metrics = Metrics(name, model.info.recipe.precision, model.method)
        self.events = EventLog(self.metrics)
        model.events.subscribe(self.events.record)
        if unusable := self._store.resume(model):
            self.events.note("source", unusable)
        self._turns = Turns()
        self._status = model.status()  # as it was after the last answer
        self._answered, self._dropped = 0, 0
        self._points: list[dict[str, Any]] = []
        self._later: set[asyncio.Task[None]] = set()

    @property
    def about(self) -> str:
        return f"{self.model.info.recipe.precision}, {self.model.method}, {self.mode}"

    @property
    def longest(self) -> int:
        """Characters that a prompt may have."""
        return longest(self.model.info)

    async def prompt(self, asked: protocol.GenerateRequest, image: Image | None) -> Prompt:
        """The tokens of a question and what its image looks like to the model, checked."""

        def work() -> Prompt:
            prompt = self.model.prompt(Question(asked.text, image))
            check_prompt(prompt, self.model.info)
            return prompt

        return await self.in_thread(work)

    async def answer(self, asked: protocol.GenerateRequest, prompt: Prompt) -> AsyncGenerator[str]:
        """The pieces of an answer as they come, in turn with those of others."""
        started, learn = time.perf_counter(), asked.parameters.adapt and self.learning
        inline = learn and self.mode == "inline"
        try:
            async with aclosing(self._turns.run(self._pieces(asked, prompt, inline))) as pieces:
                async for piece in pieces:
                    yield piece
        except (ZottaError, MemoryError):
            self._proven = False
            raise
        self._record(time.perf_counter() - started)
        if learn and not inline:
            self._learn_later(prompt)

    def _pieces(
        self, asked: protocol.GenerateRequest, prompt: Prompt, learn: bool
    ) -> Iterator[str]:
        learn, self._adapting = learn and not self._adapting, self._adapting or learn
        settings = asked.parameters.over(self.model.settings)
        try:
            pieces = self.model.stream_tokens(prompt, learn, settings)
            yield from before(pieces, asked.stop)
        finally:
            self._adapting = self._adapting and not learn
            self._changed()

    def _learn_later(self, prompt: Prompt) -> None:
        """Learn from a prompt that was answered; while another is learned from it is given up."""
        if self._adapting or self._later:
            self._dropped += 1
            return

        async def work() -> None:
            asked = protocol.GenerateRequest("")
            with suppress(ZottaError, MemoryError):
                async for _ in self._turns.run(self._pieces(asked, prompt, self.learning)):
                    pass

        task = asyncio.get_running_loop().create_task(work())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _changed(self) -> None:
        self._status = self.model.status()
        self._store.save_if_due(self.model)

    def _record(self, seconds: float) -> None:
        self._answered += 1
        self.metrics.inference.observe(seconds)
        point = {"time": time.time(), "latency": seconds, "steps": self._status.get("steps", 0)}
        point |= {"drift": None, "entropy": self._status.get("entropy"), "images": 1}
        self._points = [*self._points[1 - _POINTS :], finite(point)]

    async def ready(self) -> bool:
        if not self._proven and not self.draining:
            with suppress(ZottaError, MemoryError):
                prompt = Prompt((self.model.info.prompting.pad,))
                await self._turns.call(lambda: self.model.complete([prompt], adapt=False))
                self._proven = True
        return self._proven and not self.draining

    async def reset(self) -> None:
        def work() -> None:
            self.model.reset()
            self._store.save(self.model)

        await self._change(work)
        self.events.record_reset("request")
        self.events.note("reset")

    async def pause(self) -> None:
        self._paused, self.learning = True, False
        await asyncio.gather(
            *self._later, return_exceptions=True
        )  # an update under way is finished
        self.events.note("pause")

    async def resume(self) -> None:
        self._paused, self.learning = False, self.mode != "off" and not self.draining
        self.events.note("resume")

    async def snapshot(self) -> Snapshot:
        taken = await self._change(lambda: self._store.take(self.model))
        self.events.note("snapshot", taken.id)
        return taken

    async def restore(self, name: str) -> None:
        await self._change(lambda: self._store.restore(self.model, name))
        self.events.note("restore", name)

    async def _change(self, work: Callable[[], T]) -> T:
        done = await self._turns.call(work)
        self._status = await self._turns.call(self.model.status)
        return done

    def metadata(self) -> dict[str, Any]:
        return protocol.metadata(self.name, self.model.info.vision is not None)

    def history(self) -> list[dict[str, Any]]:
        return self._points

    def adaptation(self) -> dict[str, Any]:
        seconds = [point["latency"] for point in self._points]
        p50, p99 = np.percentile(seconds, [50, 99]).tolist() if seconds else (None, None)
        picture = {
            "name": self.name,
            "method": self.model.method,
            "mode": self.mode,
            "paused": self._paused,
            "answered": self._answered,
            "dropped": self._dropped,
            "events": self.events.recent(),
            "last_reset": self.events.last_reset,
            "latency": {"p50": p50, "p99": p99},
            "settings": self.model.settings.to_dict(),
            "precision": self.model.info.recipe.precision,
            "classes": self.model.info.shape.vocabulary,  # what each token is chosen from
        }
        safe: dict[str, Any] = finite(_UNMEASURED | self._status | picture)
        return safe

    @property
    def working(self) -> bool:
        return self._turns.busy or any(
            thread.name.startswith(PREPARE) for thread in threading.enumerate()
        )

    def drain(self) -> None:
        self.draining, self.learning = True, False

    async def close(self) -> None:
        self.drain()
        saving = asyncio.ensure_future(self._turns.call(lambda: self._store.save(self.model)))
        done, _ = await asyncio.wait({saving}, timeout=_LAST_SAVE)
        if not done:
            log.warning("an update is still under way: the last saved state stands")
        self._turns.close()
        self._prepare.shutdown(wait=False)
        if done:
            self._store.close()
