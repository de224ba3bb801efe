"""What the routes call, whatever is served: a classifier or a decoder."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any, ClassVar, TypeVar

from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.protocol import VERSION
from zotta_edge.runtime.service.learning.snapshots import Snapshot, Store
from zotta_edge.runtime.service.observe.metrics import Metrics

T = TypeVar("T")
PREPARE = "zotta-prepare"  # threads that parse requests and decode images
_PREPARING = 2


class Served(ABC):
    """A named model with its options, metrics and saved states.

    Parameters
    ----------
    name
        What clients call the model.
    config
        Mode, limits and where states are kept.
    adapts
        Whether the model does; else its saved states belong to another process.
    """

    metrics: Metrics
    extensions: ClassVar[tuple[str, ...]]  # of the protocol, that its routes speak

    def __init__(self, name: str, config: Config, adapts: bool) -> None:
        self.name, self.config = name, config
        self.mode = config.adapt if adapts else "off"
        self.draining = False
        self._store = Store(None if self.mode == "off" else config.state, name, config.save_every)
        self._prepare = ThreadPoolExecutor(_PREPARING, PREPARE)
        self._one_long = asyncio.Lock()  # so that there is a thread for what does not take long

    def check_name(self, path: Mapping[str, str]) -> None:
        """Refuse a path that names another model or version."""
        name, version = path["model"], path.get("version", VERSION)
        if name != self.name:
            raise ServiceError(404, f"no model is called {name[:80]}: this is {self.name}")
        if version != VERSION:
            raise ServiceError(404, f"there is no version {version[:20]}: only {VERSION}")

    async def in_thread(self, work: Callable[[], T], long: bool = False) -> T:
        """Run `work` in a thread, beside the event loop; one that takes long at a time."""
        async with self._one_long if long else nullcontext():
            return await asyncio.get_running_loop().run_in_executor(self._prepare, work)

    def snapshots(self) -> list[Snapshot]:
        return self._store.snapshots()

    def release(self) -> None:
        """Let go of the state's lock when the process is about to end at once."""
        with suppress(OSError):
            self._store.close()

    @property
    @abstractmethod
    def about(self) -> str:
        """Precision, method and mode, for the log."""

    @property
    @abstractmethod
    def working(self) -> bool:
        """Whether any of our threads may still be running."""

    @abstractmethod
    async def ready(self) -> bool:
        """Whether a request would be answered."""

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """The model's inputs and outputs, as the Open Inference Protocol has them."""

    @abstractmethod
    def adaptation(self) -> dict[str, Any]:
        """Everything that GET /v2/models/{model}/adaptation tells, safe for JSON."""

    @abstractmethod
    def history(self) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def reset(self) -> None:
        """Go back to the source parameters, on disk too."""

    @abstractmethod
    async def pause(self) -> None: ...

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    async def snapshot(self) -> Snapshot: ...

    @abstractmethod
    async def restore(self, name: str) -> None: ...

    @abstractmethod
    def drain(self) -> None:
        """Say that we are not ready, learn no more and answer what is waiting."""

    @abstractmethod
    async def close(self) -> None:
        """Save the state and stop; an update that takes too long is left out."""
