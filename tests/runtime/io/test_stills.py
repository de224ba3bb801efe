"""Files that were made to hurt a decoder: they never reach it, or have lost their sting."""

import os
import resource
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import cv2
import image_files
import numpy as np
import pytest
from image_files import chunk
from numpy.typing import NDArray

from zotta_edge import ZottaError
from zotta_edge.runtime.io.images import decode, list_images, read_image
from zotta_edge.runtime.io.stills import still

PNG = b"\x89PNG\r\n\x1a\n"
ROWS = (b"\0" + bytes(range(12))) * 2
PIXELS, END = chunk(b"IDAT", zlib.compress(ROWS)), chunk(b"IEND", b"")
MB = 2**20


def header(width: int = 4, height: int = 2, depth: int = 8, kind: int = 2) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))


def animation(filter_byte: int) -> bytes:
    """Without a control chunk before its pixels; OpenCV 5.0 decodes the frame after them."""
    frame = zlib.compress((bytes([filter_byte]) + bytes(12)) * 2)
    control = chunk(b"fcTL", struct.pack(">5I2H2B", 0, 4, 2, 0, 0, 1, 1, 0, 0))
    count = chunk(b"acTL", struct.pack(">II", 2, 0))
    data = chunk(b"fdAT", struct.pack(">I", 1) + frame)
    return PNG + header() + count + PIXELS + control + data + END


def jpeg(height: int, width: int, progressive: bool = False) -> bytes:
    grey = np.full((height, width, 3), 128, np.uint8)
    return bytes(cv2.imencode(".jpg", grey, [cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)])[1])


def in_a_process(data: bytes, path: Path) -> tuple[int, str]:
    """What decoding ends in, where a segmentation fault ends no test."""
    path.write_bytes(data)
    code = (
        "import sys; from zotta_edge.runtime.io.images import read_image; "
        "print(read_image(sys.argv[1]).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_an_animation_is_its_still_image(tmp_path: Path) -> None:
    """A frame with an unknown filter was a segmentation fault."""
    hostile = animation(9)
    assert len(hostile) < 170
    code, pixels = in_a_process(hostile, tmp_path / "hostile.png")
    assert code == 0
    assert pixels.strip() == str(decode(PNG + header() + PIXELS + END).tolist())


@pytest.mark.parametrize("kind", [b"IDAT", b"tEXt", b"fdAT"])
@pytest.mark.parametrize("length", [0xFFFFFFF0, 0x7FFFFFF0, 200])
def test_a_chunk_is_no_longer_than_its_file(kind: bytes, length: int) -> None:
    """OpenCV allocated what the chunk declared: 4 GB for 113 bytes, in 15 seconds."""
    huge = PNG + header() + struct.pack(">I", length) + kind + bytes(20) + PIXELS + END
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ZottaError, match="a chunk ends after the file does"):
        decode(huge)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_only_what_the_pixels_need_reaches_the_decoder() -> None:
    more = [chunk(kind, b"x" * 40) for kind in (b"iCCP", b"tEXt", b"eXIf", b"acTL", b"zTXt")]
    plain = PNG + header() + PIXELS + END
    assert still(PNG + header() + b"".join(more) + PIXELS + END + b"trailing", "it").data == plain
    photo = jpeg(16, 16)
    profile = b"\xff\xe2\0\x12ICC_PROFILE" + bytes(5)
    assert still(photo[:2] + profile + photo[2:], "it").data == photo
    stored = bytes(cv2.imencode(".webp", np.zeros((8, 8, 4), np.uint8))[1])
    assert b"ALPH" in stored or b"VP8L" in stored
    assert still(stored, "it").data[12:16] in (b"VP8 ", b"VP8L")


def palette(depth: int) -> bytes:
    rng = np.random.default_rng(depth)
    rows = b"".join(b"\0" + rng.bytes(depth) for _ in range(4))
    colours, alpha = chunk(b"PLTE", rng.bytes(3 << depth)), chunk(b"tRNS", rng.bytes(1 << depth))
    return (
        PNG + header(8, 4, depth, 3) + colours + alpha + chunk(b"IDAT", zlib.compress(rows)) + END
    )


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_palette_with_alpha_keeps_its_colours(depth: int) -> None:
    image: NDArray[np.uint8] = cv2.imdecode(np.frombuffer(palette(depth), np.uint8), 1)
    np.testing.assert_array_equal(decode(palette(depth)), image[..., ::-1])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_every_orientation_is_opencv_s(kind: str, orientation: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    if kind == "jpeg":
        data = bytes(cv2.imencode(".jpg", picture)[1])
        tagged = b"Exif\0\0" + exif
        data = data[:2] + b"\xff\xe1" + struct.pack(">H", len(tagged) + 2) + tagged + data[2:]
    elif kind == "png":
        data = bytes(cv2.imencode(".png", picture)[1])
        data = data[:33] + chunk(b"eXIf", exif) + data[33:]
    else:
        pixels = bytes(cv2.imencode(".webp", picture)[1])[12:]
        canvas = struct.pack("<4sIIHBHB", b"VP8X", 10, 8, 15, 0, 7, 0)
        body = b"WEBP" + canvas + pixels + struct.pack("<4sI", b"EXIF", len(exif)) + exif
        data = b"RIFF" + struct.pack("<I", len(body)) + body
    expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert expected.shape[:2] == ((8, 16) if orientation < 5 else (16, 8))
    np.testing.assert_array_equal(decode(data), expected[..., ::-1])


def scans(count: int, side: int) -> bytes:
    """A progressive JPEG whose last scan is announced again and again."""
    data = jpeg(side, side, progressive=True)
    at = data.rindex(b"\xff\xda")
    (length,) = struct.unpack_from(">H", data, at + 2)
    return data[:-2] + data[at : at + 2 + length] * count + data[-2:]


def zeros(size: int) -> bytes:
    """So many MB of a deflated stream that unpacks to a thousand times as much."""
    packer = zlib.compressobj(9)
    first, again, same = (
        packer.compress(bytes(4 * MB)) + packer.flush(zlib.Z_SYNC_FLUSH) for _ in range(3)
    )
    assert again == same
    return first + again * (size * MB // len(again))


def cut(data: bytes) -> list[bytes]:
    return [data[at : at + 10_000] for at in range(0, len(data), 10_000)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xd8" + b"\xff" * (31 * MB), "ends before its pixels"),
        (b"\xff\xd8\xff" + b"\0\xff" * (15 * MB), "more than 4096 segments"),
        (b"\xff\xd8\xff\xe0\0\2" + bytes(31 * MB), "ends before its pixels"),
        (PNG + header() + chunk(b"tEXt", b"") * 2_600_000, "more than 65536 chunks"),
        (b"RIFF1234WEBP" + (b"XXXX" + bytes(4)) * 3_900_000, "more than 65536 chunks"),
        (scans(5000, 1000), "5010 scans"),
        (b"RIFF1234WEBPANIM" + bytes(10), "animated"),
        (jpeg(8, 8).replace(b"\xff\xc0", b"\xff\xc3"), "lossless"),
        (PNG + header() + chunk(b"IDAT", zeros(20)) + END, "far more than its pixels"),
        (
            PNG + header() + b"".join(chunk(b"IDAT", part) for part in cut(zeros(20))) + END,
            "far more than its pixels",
        ),
    ],
    ids=["ff", "ff00", "garbage", "png", "webp", "scans", "animated", "lossless", "bomb", "bombs"],
)
def test_a_walk_through_a_file_is_short(data: bytes, reason: str) -> None:
    """31 MB of FF took 7 seconds to be refused."""
    started = time.process_time()
    with pytest.raises(ZottaError, match=reason):
        decode(data)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(("bits", "colour", "side"), [(1, 0, 6000), (8, 2, 700), (8, 3, 1100),
                                                      (8, 4, 800), (16, 6, 400)])  # fmt: skip
def test_pixels_of_every_kind_have_room(bits: int, colour: int, side: int) -> None:
    row = 1 + -(-side * bits * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] // 8)
    pixels = np.random.default_rng(0).bytes(side * row)
    declared = PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, bits, colour, 0, 0, 0))
    assert len(pixels) > MB
    assert still(declared + chunk(b"IDAT", zlib.compress(pixels, 1)) + END, "x").width == side
    with pytest.raises(ZottaError, match="far more than its pixels"):
        still(declared + chunk(b"IDAT", zlib.compress(pixels * 3, 1)) + END, "x")


@pytest.mark.parametrize(
    "start", [b"II*\0", b"MM\0*", b"GIF89a", b"\0\0\0\x1cftypavif", b"#?RADIANCE"]
)
def test_other_formats_are_refused_by_name(start: bytes) -> None:
    with pytest.raises(ZottaError, match="not a JPEG, PNG, WebP, BMP or PNM image"):
        decode(start + bytes(1000))


def test_mutated_files() -> None:
    """The long form: python benchmarks/trust/image_files.py 5000"""
    program = Path(image_files.__file__)
    done = subprocess.run([sys.executable, program, "400"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_only_files_are_read(tmp_path: Path) -> None:
    """A pipe was waited for without end, an endless device read until memory ran out."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "file.png").write_bytes(PNG + header() + PIXELS + END)
    (tmp_path / "link.png").symlink_to(tmp_path / "file.png")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing")
    for name in ("pipe.png", "device.png"):
        with pytest.raises(ZottaError, match=f"{name} is not a file"):
            read_image(tmp_path / name)
    with pytest.raises(ZottaError, match="gone.png: No such file"):
        read_image(tmp_path / "gone.png")
    np.testing.assert_array_equal(
        read_image(tmp_path / "link.png"), read_image(tmp_path / "file.png")
    )
    assert len(list_images(tmp_path)) == 5  # what cannot be read is told, not passed over
