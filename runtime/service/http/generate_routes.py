"""Routes that generate text: all at once, or as server-sent events."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from zotta_edge.errors import NotFiniteError, ZottaError
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.service.generating.service import GenerateService
from zotta_edge.runtime.service.http import generate_protocol as protocol
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.limits import Intake, decoded

log = logging.getLogger(__name__)


class GenerateRoutes:
    """generate and generate_stream."""

    def __init__(self, service: GenerateService) -> None:
        self._service, self._intake = service, Intake(service.config)

    async def generate(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        body = await self._intake.body(request)
        with self._intake.place(body):
            asked, prompt = await self._asked(body)
            text = ""
            async with aclosing(self._answer(asked, prompt)) as pieces:
                async for piece in pieces:
                    text += piece
                    if await request.is_disconnected():  # nobody waits: make room
                        raise ClientDisconnect
        return JSONResponse(protocol.respond(self._service.name, asked, text))

    async def generate_stream(self, request: Request) -> Response:
        """What fails before the first piece has a status of its own."""
        self._service.check_name(request.path_params)
        events = self._events(await self._intake.body(request))
        first = await anext(events)
        return StreamingResponse(_joined(first, events), media_type="text/event-stream")

    async def _events(self, body: bytes) -> AsyncIterator[bytes]:
        """One event a piece of the answer, and a last one that says so; or an error."""
        name, begun = self._service.name, False
        with self._intake.place(body):
            asked, prompt = await self._asked(body)
            try:
                async for piece in self._answer(asked, prompt):
                    yield protocol.event(protocol.respond(name, asked, piece) | {"done": False})
                    begun = True
                yield protocol.event(protocol.respond(name, asked, "") | {"done": True})
            except ServiceError as error:
                if not begun:
                    raise
                yield protocol.event({"error": error.message})

    async def _asked(self, body: bytes) -> tuple[protocol.GenerateRequest, Prompt]:
        service = self._service
        asked = await service.in_thread(partial(protocol.parse, body, service.longest))
        return asked, await service.prompt(asked, await self._image(asked.image))

    async def _image(self, file: bytes | None) -> Image | None:
        vision = self._service.model.info.vision
        if file is None:
            return None
        if vision is None:
            raise ServiceError(400, "the model reads text alone: leave the image out")
        _, image = await decoded(file, vision.preprocessing, self._service)
        return image

    async def _answer(self, asked: protocol.GenerateRequest, prompt: Prompt) -> AsyncGenerator[str]:
        try:
            async with aclosing(self._service.answer(asked, prompt)) as pieces:
                async for piece in pieces:
                    yield piece
        except NotFiniteError as error:
            raise ServiceError(422, f"{error}: it was not learned from") from None
        except ZottaError as error:  # the prompt was fine: it has been checked
            log.error("%s", error)
            raise ServiceError(500, "the model could not answer: see the service's log") from None


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in rest:
        yield event
