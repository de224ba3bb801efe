"""Image files taken apart before a decoder sees them: one still image, bounded, nothing else in it.

Decoders are large and old, and what they can be led to is in the parts that a still image does not
need: animations, colour profiles, text, thumbnails, metadata. Those are left out here, and every
length is held against the file. Only the orientation is read from the metadata.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from zotta_edge.errors import ZottaError

MAX_PIXELS = 64_000_000  # 192 MB decoded; OpenCV alone would let 3 GB through
MAX_BYTES = 64 * 2**20

_PNG = b"\x89PNG\r\n\x1a\n"
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by a PNG's colour type
_SPARE = 2  # times the pixels that may stand in a PNG: interlaced ones take a little more
_UNCHECKED, _PIECE = 2**20, 2**16  # bytes
_PARTS = 2**16  # chunks of a file: walking millions of empty ones takes seconds
_SEGMENTS, _PADDING = 2**12, 2**10  # of a JPEG's header, and bytes between two of them
_SCAN_PIXELS = 16 * MAX_PIXELS  # of a JPEG: each of its scans goes over all pixels, a bit at a time
_PNM = re.compile(rb"P[1-6]\s+(?:#[^\r\n]*[\r\n]\s*)*(\d{1,9})\s+(\d{1,9})\s")
_MARKER = re.compile(rb"[^\xff]*\xff+([^\xff])", re.DOTALL)
_TABLES = frozenset({0xDB, 0xC4, 0xDD, 0xE0, 0xEE})  # DQT, DHT, DRI, JFIF's and Adobe's
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive: what cameras write
_OTHER_FRAMES = frozenset({0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)})
_WITHOUT_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Still:
    """A file that holds the pixels of one image, with the size that its header declares."""

    data: bytes
    width: int
    height: int
    orientation: int = 1  # as EXIF counts: 1 upright, 6 turned by a quarter


class _UnfitError(ValueError):
    """What is wrong with a file."""


def still(data: bytes, name: str) -> Still:
    r"""The one image of a file; refused where it would not fit a small device's memory.

    Parameters
    ----------
    data
        A JPEG, PNG, WebP, BMP or PNM file.
    name
        What an error calls it.

    Examples
    --------
    >>> found = still(b"P5 2 1 255 \x00\xff", "a.pgm")
    >>> found.width, found.height, found.orientation
    (2, 1, 1)
    """
    if len(data) > MAX_BYTES:
        raise ZottaError(f"{name} is larger than {MAX_BYTES >> 20} MB: not decoded")
    try:
        image = _reader(data, name)(data)
    except _UnfitError as error:
        raise ZottaError(f"{name} cannot be decoded: {error}") from None
    except (struct.error, IndexError):
        raise ZottaError(f"{name} is damaged: its header ends early") from None
    if not 0 < image.width * image.height <= MAX_PIXELS:
        raise ZottaError(
            f"{name} is {image.width} x {image.height} pixels: more than "
            f"{MAX_PIXELS // 10**6} million, or none, not decoded"
        )
    return image


def _reader(data: bytes, name: str) -> Callable[[bytes], Still]:
    if data.startswith(_PNG):
        return _png
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp
    if data.startswith(b"BM"):
        return _bmp
    if _PNM.match(data[:4096]):
        return _pnm
    raise ZottaError(f"{name} is not a JPEG, PNG, WebP, BMP or PNM image: convert it to one")


def _png(data: bytes) -> Still:
    """Header, palette and pixels. What an animation shows first stands in there as well."""
    kept: dict[bytes, list[bytes]] = {b"IHDR": [], b"PLTE": [], b"IDAT": [], b"IEND": []}
    orientation = 1
    for kind, at, end in _png_chunks(data):
        if kind == b"eXIf":
            orientation = _orientation(data[at + 8 : end - 4])
        elif kind in kept and (kind == b"IDAT" or not kept[kind]):
            kept[kind].append(data[at:end])
    if not kept[b"IHDR"] or not kept[b"IDAT"]:
        raise _UnfitError("it has no header or no pixels")
    width, height, bits, colour = struct.unpack_from(">IIBB", kept[b"IHDR"][0], 8)
    if width * height <= MAX_PIXELS:  # else it is refused for that
        row = 1 + width * bits * _SAMPLES.get(colour, 4) // 8
        with suppress(zlib.error):  # which the decoder will tell
            _check_unpacked(kept[b"IDAT"], _SPARE * height * row + 2**16)
    chunks = [chunk for same in kept.values() for chunk in same]
    return Still(b"".join([_PNG, *chunks]), width, height, orientation)


def _check_unpacked(chunks: list[bytes], most: int) -> None:
    """Refuse what unpacks to more than the pixels: libpng would unpack it all, to be thrown away.

    1 MB unpacks to 1 GB at most, which takes as long as the largest image: it is not looked at.
    """
    if sum(map(len, chunks)) < _UNCHECKED:
        return
    stream = zlib.decompressobj()
    for chunk in chunks:
        for at in range(8, len(chunk) - 4, _PIECE):
            left = chunk[at : min(at + _PIECE, len(chunk) - 4)]
            while left and not stream.eof:
                most -= len(stream.decompress(left, 2**20))
                left = stream.unconsumed_tail
                if most < 0:
                    raise _UnfitError("its chunks hold far more than its pixels")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each chunk's kind, and where it starts and ends."""
    at = len(_PNG)
    for _ in range(_PARTS):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            raise _UnfitError("a chunk ends after the file does")
        yield kind, at, end
        if kind == b"IEND":
            return
        at = end
    raise _UnfitError(f"it has more than {_PARTS} chunks")


def _jpeg(data: bytes) -> Still:
    """Tables and frame header, then everything from the first scan on."""
    header, orientation, size = [b"\xff\xd8"], 1, (0, 0)
    for marker, at, end in _jpeg_segments(data):
        segment = data[at:end]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", segment, 3)
            size = width, height
        elif marker in _OTHER_FRAMES:
            raise _UnfitError("a lossless or arithmetic JPEG")
        elif segment[2:8] == b"Exif\0\0":
            orientation = _orientation(segment[8:])
        if marker in _TABLES or marker in _FRAMES or marker == 0xDA:
            header.append(bytes([0xFF, marker]) + segment)
        if marker == 0xDA:
            break
    scans = data.count(b"\xff\xda", end) + 1  # in packed pixels an FF never comes before a DA
    if scans * size[0] * size[1] > _SCAN_PIXELS and scans > 1:
        raise _UnfitError(f"its {scans} scans of {size[0]} x {size[1]} pixels take too long")
    return Still(b"".join([*header, data[end:]]), *size, orientation)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Each marker, and where its segment (the length first) starts and ends.

    As libjpeg looks for them: what stands between a segment and the next marker is passed over.
    """
    at = 2
    for _ in range(_SEGMENTS):
        match = _MARKER.match(data, at, at + _PADDING)
        if match is None or match[1] == b"\xd9":
            raise _UnfitError("it ends before its pixels")
        at = match.end()
        if (marker := match[1][0]) in _WITHOUT_LENGTH:
            continue
        end = at + max(2, struct.unpack_from(">H", data, at)[0])
        if end > len(data):
            raise _UnfitError("a segment ends after the file does")
        yield marker, at, end
        at = end
    raise _UnfitError(f"it has more than {_SEGMENTS} segments")


def _webp(data: bytes) -> Still:
    """The pixels alone, as a simple file; the alpha of an extended one would be dropped anyway."""
    pixels, orientation = b"", 1
    for kind, content in _riff_chunks(data):
        if kind in (b"ANIM", b"ANMF"):
            raise _UnfitError("it is animated: expected a still image")
        if kind in (b"VP8 ", b"VP8L") and not pixels:
            padding = bytes(len(content) % 2)
            pixels = struct.pack("<4sI", kind, len(content)) + content + padding
        elif kind == b"EXIF":
            orientation = _orientation(content.removeprefix(b"Exif\0\0"))
    if pixels[:4] == b"VP8L":
        (bits,) = struct.unpack_from("<I", pixels, 9)
        size = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = struct.unpack_from("<HH", pixels, 14)
        size = width & 0x3FFF, height & 0x3FFF
    header = struct.pack("<4sI4s", b"RIFF", 4 + len(pixels), b"WEBP")
    return Still(header + pixels, *size, orientation)


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 12
    for _ in range(_PARTS):
        if at + 8 > len(data):
            return
        kind, length = struct.unpack_from("<4sI", data, at)
        if at + 8 + length > len(data):
            raise _UnfitError("a chunk ends after the file does")
        yield kind, data[at + 8 : at + 8 + length]
        at += 8 + length + length % 2
    raise _UnfitError(f"it has more than {_PARTS} chunks")


def _bmp(data: bytes) -> Still:
    (header,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return Still(data, abs(width), abs(height))


def _pnm(data: bytes) -> Still:
    match = _PNM.match(data[:4096])
    assert match is not None  # it was looked for
    return Still(data, int(match[1]), int(match[2]))


def _orientation(exif: bytes) -> int:
    """Of an EXIF block; upright where it is damaged or says nothing."""
    try:
        order = {b"II*\0": "<", b"MM\0*": ">"}[exif[:4]]
        (directory,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, directory)
        for at in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", exif, at)
            if (tag, kind, count) == (_ORIENTATION, 3, 1):
                return value if 1 <= value <= 8 else 1
    except (KeyError, struct.error):
        pass
    return 1
