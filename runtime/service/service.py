"""A model that is served: answering, learning, saving and reporting, without HTTP."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.json_numbers import finite
from zotta_edge.runtime.adaptive import AdaptiveModel, Result
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http.protocol import metadata
from zotta_edge.runtime.service.learning.batching import READER, Batcher
from zotta_edge.runtime.service.learning.snapshots import Snapshot
from zotta_edge.runtime.service.learning.worker import Learned, Report, Writer, joined
from zotta_edge.runtime.service.observe.metrics import Metrics
from zotta_edge.runtime.service.observe.monitor import Monitor, label
from zotta_edge.runtime.service.served import PREPARE, Served

log = logging.getLogger(__name__)

T = TypeVar("T")
_LAST_SAVE = 3.0  # seconds that a shutdown waits for an update under way


class Service(Served):
    """A classifier that is served.

    Parameters
    ----------
    model
        Belongs to the service from now on: only its writer thread may change it.
    name
        What clients call the model.
    config
        Mode, batches and where states are kept.
    """

    extensions: ClassVar[tuple[str, ...]] = ("binary_tensor_data", "classify")

    def __init__(self, model: AdaptiveModel, name: str, config: Config) -> None:
        super().__init__(name, config, model.method != "none")
        self.model = model
        self._proven = False  # that it answers, since the last failure
        self._grey = np.zeros((1, *image_axes(model.info.preprocessing)), np.float32)
        unusable = self._store.resume(model)
        self._writer = Writer()
        self.metrics = Metrics(name, model.info.recipe.precision, model.method)
        self.monitor = Monitor(model.info, Report.of(model), self.metrics)
        model.events.subscribe(self.monitor.events.record)
        self.batcher = Batcher(model, self._writer, config, self)
        if unusable:
            self.monitor.events.note("source", unusable)
        self._paused = False

    @property
    def about(self) -> str:
        return f"{self.model.info.recipe.precision}, {self.model.method}, {self.mode}"

    @property
    def drift(self) -> float | None:
        """The drift after the last learned batch; an update under way does not show."""
        drift: float | None = finite(self.monitor.report.status.get("drift"))
        return drift

    async def predict(self, images: Floats, adapt: bool) -> Result:
        """Answer prepared images [batch, C, H, W]."""
        started, size = time.perf_counter(), self.config.batch_size
        deadline = asyncio.get_running_loop().time() + self.config.deadline
        parts = [images[at : at + size] for at in range(0, len(images), size)]
        try:
            # One after the other: requests of others come between the parts of a large one.
            results = [await self.batcher.answer(part, adapt, deadline) for part in parts]
        except (ZottaError, MemoryError):
            self._proven = False
            raise
        self.monitor.record_latency(time.perf_counter() - started)
        return joined(results)

    async def ready(self) -> bool:
        """Whether a prediction would be answered; after one that was not, a grey image is tried."""
        if not self._proven and not self.draining:
            with suppress(ZottaError, MemoryError):
                await self.in_thread(partial(self.model.predict, self._grey, adapt=False))
                self._proven = True
        return self._proven and not self.draining

    def answered(self, result: Result, seconds: float) -> None:
        self.monitor.answered(result, seconds)

    def learned(self, learned: Learned) -> None:
        self.monitor.learned(learned)
        self._writer.submit(partial(self._store.save_if_due, self.model))

    def dropped(self, images: int) -> None:
        self.monitor.dropped(images)

    async def reset(self) -> None:
        def work() -> Report:
            self.model.reset()
            self._store.save(self.model)
            return Report.of(self.model)

        await self._change(work)
        self.monitor.events.record_reset("request")
        self.monitor.events.note("reset")

    async def pause(self) -> None:
        self._paused, self.batcher.learning = True, False
        await self._change(self._frozen)
        self.monitor.events.note("pause")

    async def resume(self) -> None:
        self._paused = False
        self.batcher.learning = self.mode != "off" and not self.draining
        await self._write(self.model.unfreeze)  # in order: a pause may still be waiting
        self.monitor.events.note("resume")

    def _frozen(self) -> Report:
        self.model.freeze()
        return Report.of(self.model)

    async def snapshot(self) -> Snapshot:
        taken = await self._write(partial(self._store.take, self.model))
        self.monitor.events.note("snapshot", taken.id)
        return taken

    async def restore(self, name: str) -> None:
        def work() -> Report:
            self._store.restore(self.model, name)
            return Report.of(self.model)

        await self._change(work)
        self.monitor.events.note("restore", name)

    async def _change(self, work: Callable[[], Report]) -> None:
        """Change the model in the writer; images from before are not learned from after it."""
        self.batcher.forget()
        self.monitor.changed(await self._write(work))

    async def _write(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._writer.submit(work))

    def metadata(self) -> dict[str, Any]:
        return metadata(self.name, self.model.info)

    def history(self) -> list[dict[str, Any]]:
        return self.monitor.history()

    def adaptation(self) -> dict[str, Any]:
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
            "waiting": len(self.batcher.queue),
            "dropped": monitor.dropped_images,
            "drift": status.get("drift"),
            "significance": status.get("significance"),
            "accuracy": status.get("accuracy"),
            "held": status.get("held", False),
            "holds": status.get("holds", 0),
            "distance": status.get("distance"),
            "filter": status.get("filter"),
            "class_memory": status.get("class_memory"),
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
        pools = (READER, PREPARE)
        return self._writer.busy or any(
            thread.name.startswith(pools) for thread in threading.enumerate()
        )

    def label(self, index: int) -> str:
        return label(self.model.info, index)

    def drain(self) -> None:
        self.draining = True
        self.batcher.drain()

    async def close(self) -> None:
        self.drain()
        saved = asyncio.wrap_future(self._writer.submit(partial(self._store.save, self.model)))
        done, _ = await asyncio.wait({saved}, timeout=_LAST_SAVE)
        if not done:
            log.warning("an update is still under way: the last saved state stands")
        self.batcher.close()
        self._prepare.shutdown(wait=False)
        if done:
            self._store.close()
