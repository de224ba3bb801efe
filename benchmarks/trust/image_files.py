"""Decode many broken image files; exit with 1 if one ends in anything but pixels or a refusal.

python benchmarks/trust/image_files.py COUNT [SEED] [EXTENSION ...]

Every file is decoded in a process that may die, with 1 GB of memory to itself, and must be done
within ten seconds of its own processor time. COUNT is for each format.
"""

import multiprocessing
import resource
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized

import cv2
import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.images import Image, decode

MEMORY = 2**30
SECONDS = 10.0
EXTENSIONS = (".png", ".jpg", ".webp", ".bmp", ".ppm")
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def picture(rng: np.random.Generator) -> Image:
    height, width, channels = rng.integers(1, 24), rng.integers(1, 24), rng.choice([1, 3, 4])
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


def written(extension: str, rng: np.random.Generator) -> bytes:
    """A whole file, in one of the ways that the format has."""
    image, flags = picture(rng), list[int]()
    if extension == ".png":
        image = image.astype(np.uint16) << 8 if rng.random() < 0.2 else image
    if extension in (".jpg", ".webp"):
        flags = [cv2.IMWRITE_WEBP_QUALITY, int(rng.choice([10, 90, 101]))]
    if extension == ".jpg":
        flags = [cv2.IMWRITE_JPEG_PROGRESSIVE, int(rng.integers(2))]
        flags += [cv2.IMWRITE_JPEG_RST_INTERVAL, int(rng.integers(3))]
    if extension in (".jpg", ".ppm"):
        image = np.repeat(image[..., :1], 3, axis=2)
    return bytes(cv2.imencode(extension, image, flags)[1])


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def animated(rng: np.random.Generator) -> bytes:
    """A PNG of any kind of pixels and filters, perhaps unknown ones, perhaps with an animation."""
    width, height = (int(side) for side in rng.integers(1, 20, 2))
    kind = int(rng.choice([0, 2, 3, 4, 6]))
    depth = int(rng.choice([8, 16] if kind in (2, 4, 6) else [1, 2, 4, 8]))
    wide = (width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind] + 7) // 8

    def pixels() -> bytes:
        rows = [bytes([int(rng.integers(6))]) + rng.bytes(wide) for _ in range(height)]
        return zlib.compress(b"".join(rows))[: None if rng.random() < 0.9 else -9]

    def control(number: int) -> bytes:
        return chunk(b"fcTL", struct.pack(">5I2H2B", number, width, height, 0, 0, 1, 1, 0, 0))

    interlaced = int(rng.random() < 0.2)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    parts = [
        chunk(b"acTL", struct.pack(">II", int(rng.integers(1, 4)), 0)),
        chunk(b"PLTE", rng.bytes(3 * int(rng.integers(1, 257)))),
        chunk(b"tRNS", rng.bytes(int(rng.integers(1, 7)))),
        control(0),
        chunk(b"IDAT", pixels()),
        control(1),
        chunk(b"fdAT", struct.pack(">I", 2) + pixels()),
    ]
    needed = (4, 1) if kind == 3 else (4,)
    kept = [part for at, part in enumerate(parts) if at in needed or rng.random() < 0.5]
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(kept) + chunk(b"IEND", b"")


def mutated(data: bytes, extension: str, rng: np.random.Generator) -> bytes:
    """Bytes changed, lost, repeated or replaced by telling numbers, mostly near the header."""
    content = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        near = rng.random() < 0.6
        at = int(rng.integers(min(len(content), 64) if near else len(content)))
        match rng.integers(6):
            case 0:
                content[at] = int(rng.integers(256))
            case 1:
                content[at] ^= 1 << int(rng.integers(8))
            case 2:
                order = rng.choice(["<I", ">I"])
                content[at : at + 4] = struct.pack(order, _NUMBERS[rng.integers(len(_NUMBERS))])
            case 3:
                order = rng.choice(["<H", ">H"])
                number = _NUMBERS[rng.integers(len(_NUMBERS))] & 0xFFFF
                content[at : at + 2] = struct.pack(order, number)
            case 4:
                end = at + int(rng.integers(1, 40))
                content[at:at] = content[at:end] * int(rng.integers(1, 4))
            case 5:
                del content[at : at + int(rng.integers(1, 8))]
        if not content:
            return b""
    if rng.random() < 0.1:
        del content[int(rng.integers(len(content))) :]
    whole = bytes(content)
    return sealed(whole) if extension == ".png" and rng.random() < 0.8 else whole


def sealed(png: bytes) -> bytes:
    """The same chunks with checksums that fit: a decoder looks no further otherwise."""
    out, at = bytearray(png[:8]), 8
    while at + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, at)
        body = png[at + 4 : at + 8 + length]
        out += png[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(out + png[at:])


def files(extension: str, count: int, seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng([seed, *extension.encode()])
    for _ in range(count):
        if extension == ".png" and rng.random() < 0.5:
            yield animated(rng)
        else:
            yield mutated(written(extension, rng), extension, rng)


def decode_all(extension: str, count: int, seed: int, at: "Synchronized[int]") -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seen: Counter[str] = Counter()
    for index, data in enumerate(files(extension, count, seed)):
        at.value = index
        started = time.process_time()
        try:
            decode(data)
            seen["decoded"] += 1
        except ZottaError:
            seen["refused"] += 1
        if time.process_time() - started > SECONDS:
            sys.exit(f"{extension} {index} took too long")
    print(f"{count} {extension} files: {dict(seen)}", flush=True)


def main() -> int:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed = 0
    for extension in sys.argv[3:] or EXTENSIONS:
        at = multiprocessing.Value("q", -1)
        child = multiprocessing.Process(target=decode_all, args=(extension, count, seed, at))
        child.start()
        child.join()
        if child.exitcode:
            print(f"{extension} {at.value} of seed {seed} ended with {child.exitcode}")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
