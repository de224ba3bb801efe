"""Limits of a request: its size after decompression, its images' shapes, and how many at once."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from zotta_edge.runtime.io.images import MAX_PIXELS, Image
from zotta_edge.runtime.service.http.errors import ServiceError, busy

_SECONDS = 30.0  # in which a body must have arrived
_LONGEST = 8  # ratio of an image's sides, at most: resizing costs that much more
_PIXELS = 8  # in all, for each byte of the largest body; photographs have at most one a bit
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Slots:
    """How many requests may be worked on at the same time."""

    def __init__(self, count: int) -> None:
        self._free = count

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self._free <= 0:
            raise busy("too many requests at once: try again in a second")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


async def read_body(
    chunks: AsyncIterator[bytes], declared: str | None, encoding: str | None, limit: int
) -> bytes:
    """Read and decompress a body; refuse it as soon as it is too large."""
    if declared is not None and declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    unpack = _unpacker(encoding)
    body = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in chunks:
                body += unpack(chunk, limit + 1 - len(body))
                if len(body) > limit:
                    raise _too_large(limit)
            body += unpack(b"", limit + 1 - len(body))
    except TimeoutError:
        raise ServiceError(408, f"the body did not arrive within {_SECONDS:.0f} seconds") from None
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
    if encoding in (None, "", "identity"):
        return _Plain()
    if encoding not in _WINDOW_BITS:
        raise ServiceError(415, "Content-Encoding must be gzip, deflate or identity")
    return _Unpacked(encoding)


def _too_large(limit: int) -> ServiceError:
    return ServiceError(413, f"the request is larger than {limit / 2**20:g} MB")


def check_count(images: int, limit: int, each: int) -> None:
    """Refuse more images than fit into `limit` bytes once prepared, `each` bytes apiece."""
    if images > max(1, limit // each):
        raise ServiceError(413, f"{images} images in one request: at most {limit // each}")


def check_pixels(pixels: int, limit: int) -> None:
    """Refuse small files that decode to very many pixels."""
    most = max(MAX_PIXELS, _PIXELS * limit)
    if pixels > most:
        raise ServiceError(413, f"more than {most // 10**6} million pixels in one request")


def check_proportions(image: Image) -> None:
    """Refuse very narrow images: resized, they would be thousands of times larger."""
    rows, columns = image.shape[:2]
    if max(rows, columns) > _LONGEST * min(rows, columns):
        raise ServiceError(400, f"an image of {columns} x {rows} pixels is too narrow to classify")
