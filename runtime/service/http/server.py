"""The process: a listening socket, uvicorn, and a shutdown that answers everyone."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

import prometheus_client
import uvicorn
from starlette.applications import Starlette

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.service.http.connections import ACCEPTED, Protocol, Troubles
from zotta_edge.runtime.service.served import Served

log = logging.getLogger(__name__)

# Together with the last save (service.py) well under 10 s, after which systemd kills.
_LEAVING = 0.5  # seconds in which clients see that we are not ready, and are still served
_HANDSHAKES = 0.1  # for clients that were already connecting when new ones are turned away
_ARRIVING = 1.0  # at most, for requests on connections that stand by then
_DRAINING = 4  # for answers under way; a client that hangs is cut off then
_QUEUE = 512  # connections that the system holds until they are accepted
# IP_MINTTL and IPV6_MINHOPCOUNT of Linux, which `socket` does not name: the least time to live
# that a segment must arrive with.
_LEAST_TTL = ((socket.IPPROTO_IP, 21), (socket.IPPROTO_IPV6, 73))


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket before the model is loaded, so that a taken port is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: no name of a host
        reason = getattr(error, "strerror", None) or str(error)
        raise ZottaError(f"cannot listen on {host}:{port}: {reason}") from error
    return bound


def run(app: Starlette, bound: socket.socket) -> None:
    """Serve until SIGTERM, SIGHUP or Ctrl-C."""
    # uvicorn raises the signal again after its shutdown, when nothing is left to do.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    if hasattr(signal, "SIGHUP"):  # the terminal was closed: save and end, as with the others
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))
    # They double the number of series.
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
        # The interpreter waits for some threads when it ends, and an update would crash in it.
        os._exit(0)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Served) -> None:
        super().__init__(config)
        self._service = service
        self._listening: list[socket.socket] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(Troubles())
        self._listening = [bound.dup() for bound in sockets or []]  # uvicorn closes its own
        await super().startup(sockets)
        for bound in sockets or []:
            bound.listen(_QUEUE)
            host, port = bound.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            service = self._service
            log.info("serving %s (%s) at http://%s:%d", service.name, service.about, shown, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Report not ready, then refuse new connections, then answer the requests that came."""
        log.info("stopping")
        self._service.drain()  # from now on an answer closes its connection
        await asyncio.sleep(_LEAVING)
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in await _last_connections(self._listening):
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


async def _last_connections(listening: list[socket.socket]) -> list[socket.socket]:
    """Close listening sockets, and return the clients that had connected to them.

    Closing alone resets every client that the system has connected and nobody has accepted, and
    accepting until there are none leaves a gap before the close in which one more can connect. So
    new clients are turned away first: with the highest least TTL, the system ignores the segment
    that opens a connection, as if it were lost, and the client's next attempt a second later finds
    the port closed. Handshakes under way do end. Linux only; elsewhere the gap remains.
    """
    for bound in listening:
        _require_ttl(bound, 255)
    await asyncio.sleep(_HANDSHAKES)
    accepted = [connection for bound in listening for connection in _accept_all(bound)]
    for bound in listening:
        bound.close()
    for connection in accepted:
        _require_ttl(connection, 0)  # those of the last moment have inherited it
    return accepted


def _accept_all(bound: socket.socket) -> Iterator[socket.socket]:
    with suppress(OSError):  # mostly that there are no more
        while True:
            yield bound.accept()[0]


def _require_ttl(connection: socket.socket, least: int) -> None:
    if sys.platform == "linux":
        for level, option in _LEAST_TTL:
            with suppress(OSError):  # an IPv4 socket has no IPv6 options
                connection.setsockopt(level, option, least)
