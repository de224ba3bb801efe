"""Routes that predict: tensors of the Open Inference Protocol, or an image file."""

import gzip
import logging
import re
import zlib
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from zotta_edge.errors import NotFiniteError, ZottaError
from zotta_edge.format import Floats
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.service.http import protocol
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.limits import (
    FREE,
    Intake,
    check_answer,
    check_pixels,
    check_proportions,
    decoded,
)
from zotta_edge.runtime.service.service import Service

log = logging.getLogger(__name__)

_COMPRESS_FROM = 1024  # bytes: below, the headers weigh more
_TOP = 5  # classes in an answer of `classify`


class InferenceRoutes:
    """infer and classify."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pixels = service.model.info.preprocessing
        self._intake = Intake(service.config)
        self._limit = self._intake.limit

    async def infer(self, request: Request) -> Response:
        self._service.check_name(request.path_params)
        body = await self._intake.body(request)
        with self._intake.place(body):
            header_length = request.headers.get(protocol.HEADER_LENGTH)
            read = partial(self._asked, body, header_length)
            only_json = header_length is None and len(body) > FREE  # numbers as text take seconds
            asked = await self._service.in_thread(read, long=only_json)
            with self._intake.room(len(asked.images), self._pixels):
                result = await self._predict(await self._images(asked.images), asked.adapt)
            respond = partial(self._answer, asked, result)
            content, length = await self._service.in_thread(respond)
        headers = {} if length is None else {protocol.HEADER_LENGTH: str(length)}
        kind = "application/json" if length is None else "application/octet-stream"
        accepted = request.headers.get("accept-encoding", "")
        packed = partial(_compressed, content, kind, headers, accepted)
        return await self._service.in_thread(packed)

    async def classify(self, request: Request) -> Response:
        """An image file in, its classes out."""
        self._service.check_name(request.path_params)
        if self._service.model.info.outputs:
            raise ServiceError(400, "the model gives no class scores: ask /infer for its outputs")
        top = _number(request.query_params.get("top", str(_TOP)), "top")
        adapt = _truth(request.query_params.get("adapt", "true"), "adapt")
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise ServiceError(415, "send the file itself as the body: curl --data-binary @FILE")
        body = await self._intake.body(request)
        if not body:
            raise ServiceError(400, "the body is empty: expected an image file")
        with self._intake.place(body):
            result = await self._predict(await self._images([body]), adapt)
        return JSONResponse(self._classes(result, top))

    def _asked(self, body: bytes, header_length: str | None) -> protocol.InferRequest:
        # One pixel could become a whole input: the prepared batch is bounded, not only the body.
        most = max(1, self._limit // int(np.prod(image_axes(self._pixels))))
        info = self._service.model.info
        asked = protocol.parse(body, header_length, most, protocol.known_outputs(info))
        check_answer(protocol.answer_size(asked, info), self._limit)
        return asked

    async def _images(self, images: NDArray[Any] | list[bytes]) -> Floats:
        """Prepared, [batch, C, H, W]: a file or a few images at a time, others' in between."""
        pixels = await self._decoded(images) if isinstance(images, list) else images
        if isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim > 2:
            check_proportions(pixels[0])
        size = self._service.config.batch_size
        prepared = np.empty((len(pixels), *image_axes(self._pixels)), np.float32)
        for at in range(0, len(pixels), size):
            prepare = partial(as_batch, pixels[at : at + size], self._pixels)
            prepared[at : at + size] = await self._service.in_thread(prepare)
        return prepared

    async def _decoded(self, files: list[bytes]) -> list[Image]:
        """The pixels the network will see: few, however large the photographs were."""
        images, pixels = [], 0
        for file in files:
            size, image = await decoded(file, self._pixels, self._service)
            pixels += size
            check_pixels(pixels, self._limit)
            images.append(image)
        return images

    async def _predict(self, images: Floats, adapt: bool) -> Result:
        try:
            return await self._service.predict(images, adapt)
        except NotFiniteError as error:
            raise ServiceError(422, f"{error}: they were not learned from") from None
        except ZottaError as error:  # the images were fine: they have been checked
            log.error("%s", error)
            raise ServiceError(500, "the model could not answer: see the service's log") from None

    def _answer(self, asked: protocol.InferRequest, result: Result) -> tuple[bytes, int | None]:
        names = [self._service.label(index) for index in result.labels.tolist()]
        about: dict[str, Any] = {"adapted": result.adapted}
        if self._service.drift is not None:  # the protocol's parameters know no null
            about["drift"] = self._service.drift
        return protocol.respond(self._service.name, asked, result, names, about)

    def _classes(self, result: Result, top: int) -> dict[str, Any]:
        (probabilities,) = result.probabilities
        best = np.argsort(-probabilities, kind="stable")[:top].tolist()
        classes = [
            {
                "label": self._service.label(index),
                "index": index,
                "probability": float(probabilities[index]),
            }
            for index in best
        ]
        return {
            "model_name": self._service.name,
            "label": classes[0]["label"],
            "probability": classes[0]["probability"],
            "top": classes,
            "adapted": result.adapted,
            "drift": self._service.drift,
        }


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) <= 10**6:
        raise ServiceError(400, f"{name} must be a whole number from 1 up")
    return int(text[:9])


def _truth(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise ServiceError(400, f"{name} must be true or false")
    return text == "true"


def _compressed(content: bytes, kind: str, headers: dict[str, str], accepted: str) -> Response:
    """Fast compression, for clients that ask for it."""
    if len(content) >= _COMPRESS_FROM:
        if _accepts(accepted, "gzip"):
            content, headers["Content-Encoding"] = gzip.compress(content, 1), "gzip"
        elif _accepts(accepted, "deflate"):
            content, headers["Content-Encoding"] = zlib.compress(content, 1), "deflate"
    return Response(content, 200, headers | {"Vary": "Accept-Encoding"}, kind)


def _accepts(accepted: str, coding: str) -> bool:
    """Whether an Accept-Encoding names the coding, and not to decline it."""
    entries = (entry.partition(";") for entry in accepted.lower().replace(" ", "").split(","))
    weights = [weight for name, _, weight in entries if name == coding]
    return bool(weights) and not re.fullmatch(r"q=0(\.0*)?", weights[0])
