"""The ASGI app: its routes, and what clients are told about failures."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.adaptive import AdaptiveModel
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.generating.service import GenerateService
from zotta_edge.runtime.service.http.access import Access
from zotta_edge.runtime.service.http.admin_routes import AdminRoutes
from zotta_edge.runtime.service.http.errors import ServiceError, busy
from zotta_edge.runtime.service.http.generate_routes import GenerateRoutes
from zotta_edge.runtime.service.http.inference_routes import InferenceRoutes
from zotta_edge.runtime.service.http.middleware import ServiceMiddleware
from zotta_edge.runtime.service.http.page import page
from zotta_edge.runtime.service.observe.metrics import CONTENT_TYPE
from zotta_edge.runtime.service.served import Served
from zotta_edge.runtime.service.service import Service
from zotta_edge.version import __version__

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    model: AdaptiveModel | AdaptiveDecoder,
    name: str = "model",
    config: Config | None = None,
    *,
    token: str | None = None,
    only_local: bool = False,
) -> Starlette:
    """Make an ASGI app that serves a model, to run or to mount in an app of your own.

    Mounted apps get no lifespan events: call `await app.state.service.close()` when yours ends.

    Parameters
    ----------
    model
        Belongs to the app from now on.
    name
        What clients call it, in `/v2/models/{name}`.
    config
        Mode, batches, limits and where states are kept; None: the defaults.
    token
        Needed for every POST as `Authorization: Bearer TOKEN`; None: no token.
    only_local
        Refuse requests that were sent to another name than localhost.

    Examples
    --------
    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> app = create_app(AdaptiveModel.load(embedded.MODEL), "digits", Config(adapt="background"))
    >>> app.state.service.adaptation()["mode"]
    'background'
    """
    config = config or Config()
    service: Served
    predicting: list[tuple[str, Handler]]
    if isinstance(model, AdaptiveDecoder):
        service = generating = GenerateService(model, name, config)
        texts = GenerateRoutes(generating)
        predicting = [("generate", texts.generate), ("generate_stream", texts.generate_stream)]
    else:
        service = classifying = Service(model, name, config)
        images = InferenceRoutes(classifying)
        predicting = [("infer", images.infer), ("classify", images.classify)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    app = Starlette(
        routes=_routes(InfoRoutes(service), AdminRoutes(service), predicting),
        lifespan=lifespan,
        middleware=[
            Middleware(ServiceMiddleware, service=service, access=Access(token, only_local))
        ],
        exception_handlers={
            ServiceError: _refused,
            ZottaError: _bad_input,
            HTTPException: _no_route,
            MemoryError: _out_of_memory,
            ClientDisconnect: _gone,
            Exception: _defect,
        },
    )
    app.state.service = service
    return app


class InfoRoutes:
    """Routes for reading: the dashboard, metrics, health and metadata."""

    def __init__(self, service: Served) -> None:
        self._service = service

    async def dashboard(self, request: Request) -> Response:
        content, headers = page()
        return Response(content, 200, headers, "text/html")

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def server(self, request: Request) -> Response:
        return JSONResponse(
            {
                "name": "zotta-edge",
                "version": __version__,
                "extensions": [*self._service.extensions, "adaptation"],
                "models": [self._service.name],
            }
        )

    async def live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        ready = await self._service.ready()
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def model_ready(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        return await self.ready(request)

    async def metadata(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        return JSONResponse(self._service.metadata())


def _routes(
    info: InfoRoutes, admin: AdminRoutes, predicting: list[tuple[str, Handler]]
) -> list[BaseRoute]:
    """All routes; the handlers' names become the `endpoint` label of the metrics."""
    model, adaptation = "/v2/models/{model}", "/v2/models/{model}/adaptation"
    get: list[tuple[str, Handler]] = [
        ("/", info.dashboard),
        ("/metrics", info.metrics),
        ("/v2", info.server),
        ("/v2/health/live", info.live),
        ("/v2/health/ready", info.ready),
        (adaptation, admin.adaptation),
        (f"{adaptation}/history", admin.history),
        (f"{adaptation}/snapshots", admin.snapshots),
    ]
    post: list[tuple[str, Handler]] = [
        (f"{adaptation}/reset", admin.reset),
        (f"{adaptation}/pause", admin.pause),
        (f"{adaptation}/resume", admin.resume),
        (f"{adaptation}/snapshots", admin.snapshot),
        (f"{adaptation}/snapshots/{{id}}/restore", admin.restore),
    ]
    for prefix in (model, f"{model}/versions/{{version}}"):
        get += [(prefix, info.metadata), (f"{prefix}/ready", info.model_ready)]
        post += [(f"{prefix}/{path}", handler) for path, handler in predicting]
    return [
        *(Route(path, handler, methods=["GET"]) for path, handler in get),
        *(Route(path, handler, methods=["POST"]) for path, handler in post),
    ]


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return JSONResponse({"error": error.message}, error.status, error.headers)


async def _bad_input(request: Request, error: Exception) -> Response:
    """For images that the model cannot take."""
    return JSONResponse({"error": str(error)}, 400)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: "there is nothing here: see GET /v2", 405: "this path takes another method"}
    message = known.get(error.status_code, error.detail)
    return JSONResponse({"error": message}, error.status_code, error.headers)


async def _out_of_memory(request: Request, error: Exception) -> Response:
    return await _refused(request, busy("out of memory: send fewer or smaller images"))


async def _gone(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the client went away"}, 400)


async def _defect(request: Request, error: Exception) -> Response:
    """The traceback goes to the log, by uvicorn, and not to the client."""
    return JSONResponse({"error": "internal error: see the service's log"}, 500)
