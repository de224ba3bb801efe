"""Connections that may be open, and how long one may keep others waiting."""

import asyncio
import errno
import logging
import sys
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

_HEADERS = 10.0  # seconds in which a request's headers must have arrived
_READING = 30.0  # seconds in which a client must take in what waits to be sent
_MOST = 512
_OWN = 64  # file descriptors that are not connections: models, states, the loop's own
_LEAST = 64  # or the loop accepts more in one go than may be open, and cuts who was about to speak
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_QUIET = 10.0  # seconds between two lines about the same trouble
ACCEPTED = 16  # connections that are accepted before the first of them is looked at


def most_connections() -> int:
    """As many as are of use, or as the system lets a process have."""
    if sys.platform == "win32":
        return _MOST
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if allowed < 0 else max(_LEAST, min(_MOST, allowed - _OWN))


class Protocol(H11Protocol):
    """uvicorn's, for clients who connect and say nothing, or ask and do not listen.

    Where there are too many connections, the one that has been idle for longest makes room.
    """

    most = most_connections()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late: asyncio.TimerHandle | None = None  # headers that do not come
        self._deaf: asyncio.TimerHandle | None = None  # answers that are not read
        self._since = time.monotonic()

    @property
    def idle(self) -> bool:
        """No request is under way, as far as is known: one may be about to be read."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        standing = [each for each in self.connections if not each.transport.is_closing()]
        if len(standing) > self.most:
            waiting = [each for each in standing if isinstance(each, Protocol) and each.idle]
            min(waiting, key=lambda each: each._since).cut()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = time.monotonic()

    def _watch(self) -> None:
        """Time runs from the first moment of a request to the end of its headers."""
        if self.conn.their_state is not h11.IDLE:
            _stop(self._late)
            self._late = None
        elif self._late is None:
            self._late = self.loop.call_later(_HEADERS, self.cut)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deaf = self.loop.call_later(_READING, self.cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._deaf)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _stop(self._late)
        _stop(self._deaf)

    def cut(self) -> None:
        self.transport.abort()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Troubles:
    """The loop's exception handler: no traceback for every connection that there is no room for."""

    def __init__(self) -> None:
        self._told = -_QUIET

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF:
            loop.default_exception_handler(context)
        elif loop.time() - self._told >= _QUIET:
            self._told = loop.time()
            log.error("no connection can be accepted: %s", error.strerror)
