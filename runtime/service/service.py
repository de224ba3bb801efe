"""One model in service: who asks, who learns, what is kept."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from zotta_edge.format import Floats
from zotta_edge.runtime.adaptive import AdaptiveModel, Result
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.protocol import VERSION
from zotta_edge.runtime.service.learning.batching import READER, Gatherer
from zotta_edge.runtime.service.learning.snapshots import Snapshot, Store
from zotta_edge.runtime.service.learning.worker import Learned, Report, Writer
from zotta_edge.runtime.service.observe.metrics import Metrics
from zotta_edge.runtime.service.observe.monitor import Monitor, finite, label

log = logging.getLogger(__name__)

T = TypeVar("T")
_PREPARE = "zotta-prepare"  # threads that read requests and decode images
_PREPARING = 2
_LAST_SAVE = 3.0  # seconds that a shutdown waits for an update under way


class Service:
    """Everything that the routes need, without HTTP."""

    def __init__(self, model: AdaptiveModel, name: str, config: Config) -> None:
        self.model, self.name, self.config = model, name, config
        self.draining = False
        # What others have learned is not this one's to put aside, to overwrite or to prune.
        self._store = Store(None if self.mode == "off" else config.state, name, config.save_every)
        self._store.resume(model)
        self._writer = Writer()
        self._prepare = ThreadPoolExecutor(_PREPARING, _PREPARE)
        self.metrics = Metrics(name, model.info.recipe.precision, model.method)
        self.monitor = Monitor(model.info, Report.of(model), self.metrics)
        model.events.subscribe(self.monitor.events.record)
        self.gatherer = Gatherer(model, self._writer, config, self)
        self._paused = False

    @property
    def mode(self) -> str:
        return self.config.adapt if self.model.method != "none" else "off"

    @property
    def drift(self) -> float | None:
        """As of the last lesson: one that is under way may have moved half of the numbers."""
        drift: float | None = finite(self.monitor.report.status.get("drift"))
        return drift

    def check_name(self, path: Mapping[str, str]) -> None:
        """Whether a request's path means this model."""
        name, version = path["model"], path.get("version", VERSION)
        if name != self.name:
            raise ServiceError(404, f"no model is called {name[:80]}: this is {self.name}")
        if version != VERSION:
            raise ServiceError(404, f"there is no version {version[:20]}: only {VERSION}")

    async def prepared(self, work: Callable[[], T]) -> T:
        """Run what reads a request beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._prepare, work)

    async def predict(self, images: Floats, adapt: bool) -> Result:
        """Answer prepared images [batch, C, H, W]."""
        started = time.perf_counter()
        result = await self.gatherer.answer(images, adapt)
        self.monitor.took(time.perf_counter() - started)
        return result

    def answered(self, result: Result, seconds: float) -> None:
        self.monitor.answered(result, seconds)

    def learned(self, learned: Learned) -> None:
        self.monitor.learned(learned)
        self._writer.submit(partial(self._store.save_if_due, self.model))

    def dropped(self, images: int) -> None:
        self.monitor.dropped(images)

    async def reset(self) -> None:
        """Back to the source, on disk too."""

        def work() -> Report:
            self.model.reset()
            self._store.save(self.model)
            return Report.of(self.model)

        await self._change(work)
        self.monitor.events.record_reset("request")
        self.monitor.events.record_request("reset")

    async def pause(self) -> None:
        self._paused, self.gatherer.learning = True, False
        await self._change(self._frozen)
        self.monitor.events.record_request("pause")

    async def resume(self) -> None:
        self._paused = False
        self.gatherer.learning = self.mode != "off" and not self.draining
        await self._write(self.model.unfreeze)  # in its turn: a pause may still wait for its own
        self.monitor.events.record_request("resume")

    def _frozen(self) -> Report:
        self.model.freeze()
        return Report.of(self.model)

    def snapshots(self) -> list[Snapshot]:
        return self._store.snapshots()

    async def snapshot(self) -> Snapshot:
        taken = await self._write(partial(self._store.take, self.model))
        self.monitor.events.record_request("snapshot", taken.id)
        return taken

    async def restore(self, name: str) -> None:
        def work() -> Report:
            self._store.restore(self.model, name)
            return Report.of(self.model)

        await self._change(work)
        self.monitor.events.record_request("restore", name)

    async def _change(self, work: Callable[[], Report]) -> None:
        """Change the model in its turn; images from before are no longer learned from."""
        self.gatherer.forget()
        self.monitor.changed(await self._write(work))

    async def _write(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._writer.submit(work))

    def adaptation(self) -> dict[str, Any]:
        """The whole picture, all of it safe for JSON."""
        status, monitor = self.monitor.report.status, self.monitor
        guard = status.get("guard", {})
        resets = status["resets"] + guard.get("collapse", 0) + guard.get("returned", 0)
        picture = {
            "name": self.name,
            "method": self.model.method,
            "mode": self.mode,
            "paused": self._paused,
            "phase": status.get("phase"),
            "steps": status.get("steps", 0),
            "images": status["images"],
            "batches": status["batches"],
            "answered": monitor.images,
            "waiting": len(self.gatherer.lessons),
            "dropped": monitor.lost,
            "drift": status.get("drift"),
            "significance": status.get("significance"),
            "distance": status.get("distance"),
            "filter": status.get("filter"),
            "layers": monitor.layers(),
            "guard": dict(guard),
            "events": monitor.events.recent(),
            "resets": resets,
            "last_reset": monitor.events.last_reset,
            "entropy": monitor.entropy,
            "latency": monitor.latency(),
            "recent": monitor.classes(),
            "settings": self.model.settings.to_dict(),
            "precision": self.model.info.recipe.precision,
            "classes": self.model.info.classes,
        }
        safe: dict[str, Any] = finite(picture)
        return safe

    @property
    def working(self) -> bool:
        """Whether a thread may still be at work, for however long."""
        pools = (READER, _PREPARE)
        return self._writer.busy or any(
            thread.name.startswith(pools) for thread in threading.enumerate()
        )

    def label(self, index: int) -> str:
        return label(self.model.info, index)

    def drain(self) -> None:
        """Not ready any more, and in a hurry with what is still there."""
        self.draining = True
        self.gatherer.hurry()

    async def close(self) -> None:
        """Save and let go; an update that takes too long is left out."""
        self.drain()
        saved = asyncio.wrap_future(self._writer.submit(partial(self._store.save, self.model)))
        done, _ = await asyncio.wait({saved}, timeout=_LAST_SAVE)
        if not done:
            log.warning("an update is still under way: the last saved state stands")
        self.gatherer.close()
        self._prepare.shutdown(wait=False)
        if done:
            self._store.close()

    def release(self) -> None:
        """For a process that ends here and now, whatever its writer is at."""
        with suppress(OSError):
            self._store.close()
