"""Routes that show and control adaptation."""

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from zotta_edge.runtime.service.served import Served


class AdminRoutes:
    """Status, history, reset, pause, resume and snapshots."""

    def __init__(self, service: Served) -> None:
        self._service = service

    async def adaptation(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        return JSONResponse(self._service.adaptation())

    async def history(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        return JSONResponse({"points": self._service.history()})

    async def reset(self, request: Request) -> Response:
        return await self._act(request, self._service.reset)

    async def pause(self, request: Request) -> Response:
        return await self._act(request, self._service.pause)

    async def resume(self, request: Request) -> Response:
        return await self._act(request, self._service.resume)

    async def restore(self, request: Request) -> Response:
        return await self._act(request, partial(self._service.restore, request.path_params["id"]))

    async def _act(self, request: Request, action: Callable[[], Awaitable[None]]) -> Response:
        self._service.check_name(request.path_params)
        await action()
        return JSONResponse(self._service.adaptation())

    async def snapshots(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        snapshots = await self._service.in_thread(self._service.snapshots)
        return JSONResponse({"snapshots": [snapshot.to_dict() for snapshot in snapshots]})

    async def snapshot(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        taken = await self._service.snapshot()
        return JSONResponse(taken.to_dict(), 201)
