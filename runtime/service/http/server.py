"""The process: a socket, uvicorn, and an orderly end."""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

import prometheus_client
import uvicorn
from starlette.applications import Starlette

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.service.http.connections import ACCEPTED, Protocol, Troubles
from zotta_edge.runtime.service.service import Service

log = logging.getLogger(__name__)

# With the last save (service.py) well under the 10 s after which systemd or a person kills.
_LEAVING = 0.5  # seconds in which clients learn that we are not ready, and are still served
_GREETING = 0.1  # for clients who were already connecting when the door closed
_ARRIVING = 1.0  # at most, for requests on connections that stand when the door closes
_DRAINING = 4  # for answers under way; a client that hangs is cut off then
_QUEUE = 512  # connections that the system holds until they are accepted
_SO_ATTACH_FILTER = 26  # Linux's, missing in `socket`


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, or one line that says why not, before a model is loaded in vain."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ZottaError(f"cannot listen on {host}:{port}: {reason}") from error
    return bound


def run(app: Starlette, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    # uvicorn raises the signals again that it was stopped by; by then all is in order.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    # A second series for every counter.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTED,
        timeout_graceful_shutdown=_DRAINING,
    )
    _Server(config, app.state.service).run([bound])
    log.info("stopped")
    logging.shutdown()
    if app.state.service.working:
        app.state.service.release()
        # An update that outlasts us would crash in a dying interpreter, which waits for the others.
        os._exit(0)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(Troubles())
        await super().startup(sockets)
        for bound in sockets or []:
            bound.listen(_QUEUE)
            host, port = bound.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            service = self._service
            how = f"{service.model.info.recipe.precision}, {service.model.method}, {service.mode}"
            log.info("serving %s (%s) at http://%s:%d", service.name, how, shown, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """First not ready, then no new connections, then no new requests; each is answered."""
        log.info("stopping")
        self._service.drain()  # from now on an answer closes its connection
        await asyncio.sleep(_LEAVING)
        for bound in sockets or []:
            _deafen(bound)
        await asyncio.sleep(_GREETING)
        last = [connection for bound in sockets or [] for connection in _accepted(bound)]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in last:
            await loop.connect_accepted_socket(self._protocol, connection)
        await asyncio.sleep(0.05)  # those that the loop has accepted by itself join `connections`
        end = loop.time() + _ARRIVING
        while self.server_state.connections and loop.time() < end:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


def _accepted(bound: socket.socket) -> Iterator[socket.socket]:
    """Clients that the system has connected but the loop has not seen: closing would cut them."""
    with suppress(OSError):  # mostly that there are no more
        while True:
            yield bound.accept()[0]


def _deafen(bound: socket.socket) -> None:
    """From now on nobody new can begin to connect; who has begun may finish.

    A packet filter on the listening socket drops the TCP segments that open a connection. Were all
    dropped, a client between the two last steps of its handshake would think itself connected.
    Linux only; elsewhere a moment remains in which a client is cut off before its request is read.
    """
    if sys.platform == "linux":
        drop_opening = [
            (0x30, 0, 0, 13),  # the flags byte of the TCP header
            (0x54, 0, 0, 0x12),  # its SYN and ACK bits
            (0x15, 0, 1, 0x02),  # SYN alone?
            (0x06, 0, 0, 0),  # then drop,
            (0x06, 0, 0, 0xFFFFFFFF),  # else keep it whole
        ]
        packed = b"".join(struct.pack("HBBI", *instruction) for instruction in drop_opening)
        instructions = ctypes.create_string_buffer(packed)
        program = struct.pack("HP", len(drop_opening), ctypes.addressof(instructions))
        with suppress(OSError):
            bound.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
