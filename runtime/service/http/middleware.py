"""Around every request: access, headers, the metric and the log line."""

import logging
import time

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zotta_edge.runtime.service.http.access import Access
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.served import Served

log = logging.getLogger(__name__)

_SHOWN = 200  # characters of a path in the log, which 64 KB a request would fill


class ServiceMiddleware:
    """Checks access, adds headers, and counts and logs every request."""

    def __init__(self, app: ASGIApp, service: Served, access: Access) -> None:
        self._app, self._service, self._access = app, service, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *self._headers()]
            await send(message)

        try:
            self._access.check(scope["method"], Request(scope).headers)
            await self._app(scope, receive, watched)
        except ServiceError as refused:
            response = JSONResponse({"error": refused.message}, refused.status, refused.headers)
            await response(scope, receive, watched)
        finally:
            self._record(scope, status, time.perf_counter() - started)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-content-type-options", b"nosniff")]
        if self._service.draining:
            headers.append((b"connection", b"close"))  # so that its next request goes elsewhere
        return headers

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = getattr(scope.get("endpoint"), "__name__", "other")
        self._service.metrics.requests.labels(endpoint, str(status)).inc()
        # A dashboard or a Prometheus that looks every second would fill the log.
        level = logging.INFO if scope["method"] == "POST" or status >= 400 else logging.DEBUG
        # As it was sent: decoded, a path could hold line breaks and forge entries.
        path = scope.get("raw_path", b"")[:_SHOWN].decode("latin-1")
        fields = {
            "method": scope["method"],
            "path": path,
            "status": status,
            "seconds": round(seconds, 6),
        }
        text = f"{scope['method']} {path} {status} {1000 * seconds:.1f} ms"
        log.log(level, "%s", text, extra={"fields": fields})
