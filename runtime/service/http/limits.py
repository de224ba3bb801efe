"""Limits of a request: its size after decompression, its images' shapes, and how many at once."""

import asyncio
import math
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from starlette.requests import Request

from zotta_edge.format import Preprocessing
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.runtime.io.images import Image, decode_still
from zotta_edge.runtime.io.preprocessing import fit
from zotta_edge.runtime.io.stills import MAX_PIXELS, still
from zotta_edge.runtime.memory import give_back
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http.errors import ServiceError, busy
from zotta_edge.runtime.service.served import Served

_SECONDS = 30.0  # in which a body must have arrived
_STALL = 5.0  # seconds without a byte of it
FREE = 2**20  # bytes of a body that count for nothing: as many as most photographs have
_BODIES = 8  # of the largest kind, that may be on their way together, and as many in work
_PREPARED = 8  # times the largest body, that prepared images may take together
_YOUNG = 2.0  # seconds in which no body makes room for others
_ANSWERED = 10.0  # seconds between two times that freed memory is given back
_LONGEST = 8  # ratio of an image's sides, at most: resizing costs that much more
_LARGE = 4_000_000  # pixels, from which on an image keeps a thread busy for too long
_PIXELS = 8  # in all, for each byte of the largest body; photographs have at most one a bit
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Slots:
    """How many requests, or bytes of them, may be worked on at the same time."""

    def __init__(self, count: int, what: str) -> None:
        self._free, self._what = count, what

    @contextmanager
    def taken(self, count: int = 1) -> Iterator[None]:
        if self._free < count:
            raise busy(f"too many {self._what} at once: try again in a second")
        self._free -= count
        try:
            yield
        finally:
            self._free += count


class Body:
    """One on its way: what it holds of the memory they share, and how to stop it."""

    def __init__(self, arriving: "Arriving") -> None:
        self._arriving = arriving
        self.held, self.since = 0, time.monotonic()
        self.stop: Callable[[], None] = lambda: None

    def grow(self, size: int) -> None:
        """Tell its size so far."""
        self.held += self._arriving.lend(max(0, size - FREE) - self.held)


class Arriving:
    """Bodies on their way hold memory and no place; the large ones share a bounded amount of it.

    Where that is used up, the one that has been on its way for longest makes room, unless it came
    a moment ago: eight uploads that never end would keep all large ones out otherwise.
    """

    def __init__(self, limit: int) -> None:
        self._left = _BODIES * limit
        self._bodies: set[Body] = set()

    @contextmanager
    def body(self) -> Iterator[Body]:
        one = Body(self)
        self._bodies.add(one)
        try:
            yield one
        finally:
            self._bodies.discard(one)
            self._left += one.held

    def lend(self, more: int) -> int:
        while more > self._left:
            self._make_room()
        self._left -= more
        return more

    def _make_room(self) -> None:
        large = [body for body in self._bodies if body.held]
        oldest = min(large, key=lambda body: body.since, default=None)
        if oldest is None or time.monotonic() - oldest.since < _YOUNG:
            raise busy("too many large requests at once: try again in a second")
        self._bodies.discard(oldest)
        self._left, oldest.held = self._left + oldest.held, 0
        oldest.stop()


class Intake:
    """Bodies of requests, and places for those that are worked on."""

    def __init__(self, config: Config) -> None:
        self.limit = int(config.max_body * 2**20)
        self._slots, self._arriving = Slots(config.max_requests, "requests"), Arriving(self.limit)
        self._bodies = Slots(_BODIES * self.limit, "large requests")
        self._prepared = Slots(_PREPARED * self.limit, "images")
        self._giving: asyncio.TimerHandle | None = None

    async def body(self, request: Request) -> bytes:
        """Before a place is taken: a client that sends slowly keeps nobody from it."""
        headers = request.headers
        encoding, declared = headers.get("content-encoding"), headers.get("content-length")
        if self._giving is None:  # memory of large bodies and large images, once they are answered
            self._giving = asyncio.get_running_loop().call_later(_ANSWERED, self._give_back)
        with self._arriving.body() as arriving:
            return await read_body(request.stream(), declared, encoding, self.limit, arriving)

    def _give_back(self) -> None:
        self._giving = None
        give_back()

    @contextmanager
    def place(self, body: bytes) -> Iterator[None]:
        """For a request whose body has arrived."""
        with self._slots.taken(), self._bodies.taken(max(0, len(body) - FREE)):
            yield

    def room(self, images: int, pixels: Preprocessing) -> AbstractContextManager[None]:
        """For prepared images: a dot of one byte becomes a whole input, until it is answered."""
        one = 4 * math.prod(image_axes(pixels))
        return self._prepared.taken(max(0, images * one - max(FREE, one)))


async def read_body(
    chunks: AsyncIterator[bytes],
    declared: str | None,
    encoding: str | None,
    limit: int,
    arriving: Body,
) -> bytes:
    """The whole body, decompressed; refused as soon as it is known to be too large or too slow."""
    if declared is not None and declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    unpack = _unpacker(encoding)
    body = bytearray()
    try:
        loop = asyncio.get_running_loop()
        end = loop.time() + _SECONDS
        async with asyncio.timeout(_STALL) as patience:
            arriving.stop = lambda: patience.reschedule(loop.time())
            async for chunk in chunks:
                body += unpack(chunk, limit + 1 - len(body))
                arriving.grow(len(body))
                if len(body) > limit:
                    raise _too_large(limit)
                patience.reschedule(min(end, loop.time() + _STALL))
            body += unpack(b"", limit + 1 - len(body))
    except TimeoutError:
        raise ServiceError(
            408,
            f"the body did not arrive within {_SECONDS:.0f} seconds, stopped for {_STALL:.0f}, or "
            "took long while others waited",
            {"Connection": "close"},
        ) from None
    except zlib.error:
        raise ServiceError(400, f"the body is not valid {encoding}") from None
    if len(body) > limit:
        raise _too_large(limit)
    return bytes(body)


class _Plain:
    def __call__(self, chunk: bytes, room: int) -> bytes:
        return chunk[:room]


class _Unpacked:
    """Decompresses without ever producing more than there is room for."""

    def __init__(self, encoding: str) -> None:
        self._stream = zlib.decompressobj(_WINDOW_BITS[encoding])

    def __call__(self, chunk: bytes, room: int) -> bytes:
        if room <= 0:
            return b""
        if not chunk:  # the end
            if not self._stream.eof:
                raise zlib.error("ends early")
            return b""
        unpacked = self._stream.decompress(self._stream.unconsumed_tail + chunk, room)
        if self._stream.unused_data:  # would be collected without limit
            raise zlib.error("goes on after its end")
        return unpacked


def _unpacker(encoding: str | None) -> _Plain | _Unpacked:
    encoding = (encoding or "").strip().lower()
    if encoding in ("", "identity"):
        return _Plain()
    if encoding not in _WINDOW_BITS:
        raise ServiceError(415, "Content-Encoding must be gzip, deflate or identity")
    return _Unpacked(encoding)


def _too_large(limit: int) -> ServiceError:
    return ServiceError(413, f"the request is larger than {limit / 2**20:g} MB")


def check_answer(size: int, limit: int) -> None:
    """Refuse to make an answer that is larger than a request may be."""
    if size > limit:
        raise ServiceError(
            413,
            f"the answer would take {size / 2**20:.0f} MB, more than {limit / 2**20:g}: send fewer "
            "images, or ask for fewer outputs or for binary ones",
        )


def check_pixels(pixels: int, limit: int) -> None:
    """Refuse small files that decode to very many pixels."""
    most = max(MAX_PIXELS, _PIXELS * limit)
    if pixels > most:
        raise ServiceError(413, f"more than {most // 10**6} million pixels in one request")


async def decoded(file: bytes, pixels: Preprocessing, service: Served) -> tuple[int, Image]:
    """How many pixels an image file has, and those of its resized image."""

    def fitted() -> Image:
        image = decode_still(found)
        check_proportions(image)
        return fit(image, pixels)

    taking_apart = partial(still, file, "the image")
    found = await service.in_thread(taking_apart, long=len(file) > FREE)
    size = found.width * found.height
    return size, await service.in_thread(fitted, long=size > _LARGE)


def check_proportions(image: Image) -> None:
    """Refuse very narrow images: resized, they would be thousands of times larger."""
    rows, columns = image.shape[:2]
    if max(rows, columns) > _LONGEST * min(rows, columns):
        raise ServiceError(
            400, f"an image of {columns} x {rows} pixels is too narrow to be resized"
        )
