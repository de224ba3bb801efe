"""Image files to RGB uint8 arrays [height, width, 3], with OpenCV.

Alpha is dropped, not composited: that is what PIL's `convert("RGB")` does, so it is what the
classifiers were trained on. Sixteen-bit images keep their high byte. EXIF orientation is applied.
"""

import glob
import os
import re
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError

Image = NDArray[np.uint8]

EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
MAX_PIXELS = 64_000_000  # 192 MB decoded; OpenCV alone would let 3 GB through
MAX_BYTES = 64 * 2**20
# OpenCV's own limit, for headers that it reads otherwise than we do; it looks when it is imported.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))

_PNM = re.compile(rb"P[1-6]\s+(?:#[^\r\n]*[\r\n]\s*)*(\d{1,9})\s+(\d{1,9})\s")
_WITHOUT_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xD8), 0xFF})  # markers of a JPEG


def read_image(path: str | Path) -> Image:
    """Decode an image file.

    Parameters
    ----------
    path
        An image file of up to 64 MB.

    Returns
    -------
    RGB, uint8 [height, width, 3].

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "red.ppm")
    >>> _ = path.write_bytes(b"P6 2 1 255 " + bytes([255, 0, 0] * 2))
    >>> read_image(path).tolist()
    [[[255, 0, 0], [255, 0, 0]]]
    """
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise ZottaError(f"{path} is larger than {MAX_BYTES >> 20} MB: not read")
        data = Path(path).read_bytes()
    except OSError as error:
        raise ZottaError(f"cannot read {path}: {error.strerror or error}") from error
    return decode(data, str(path))


def decode(data: bytes, name: str = "the image") -> Image:
    """Decode an image file held in memory; `name` is what an error calls it."""
    import cv2
    from cv2.utils.logging import LOG_LEVEL_SILENT, setLogLevel

    _check_size(data, name)
    level = setLogLevel(LOG_LEVEL_SILENT)  # the error below says it in one line
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        image = None
    finally:
        setLogLevel(level)
    if image is None:
        raise ZottaError(f"{name} is damaged or of an unsupported kind: cannot be decoded")
    rgb: Image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)
    return rgb


def list_images(where: str | Path, recursive: bool = True) -> list[Path]:
    """List image files in natural order, in which `img2` comes before `img10`.

    Parameters
    ----------
    where
        A folder, a glob pattern or a single file.
    recursive
        Whether to look into the folder's own folders.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("img10.png", "img2.png", "notes.txt"):
    ...     (folder / name).touch()
    >>> [path.name for path in list_images(folder)]
    ['img2.png', 'img10.png']
    """
    path = Path(where).expanduser()
    if path.is_dir():
        paths = _walk(path) if recursive else [p for p in path.iterdir() if p.is_file()]
    elif path.is_file():
        return [path]
    elif glob.has_magic(str(where)):
        paths = [Path(p) for p in glob.glob(str(path), recursive=recursive) if Path(p).is_file()]
    else:
        raise ZottaError(f"{where} does not exist: expected a folder of images, a glob or a file")
    images = [p for p in paths if p.suffix.lower() in EXTENSIONS and not p.name.startswith(".")]
    if not images:
        raise ZottaError(f"no images in {where} (looked for {', '.join(sorted(EXTENSIONS))})")
    return sorted(images, key=natural)


def natural(path: Path) -> list[list[tuple[int, str]]]:
    """A key that sorts `img2` before `img10`, folder by folder."""
    return [
        [(int(run), "") if run.isdecimal() else (-1, run) for run in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


def _walk(folder: Path) -> list[Path]:
    """Every file below `folder`, through symlinked class folders, but never round in a circle."""
    paths: list[Path] = []
    seen = {os.path.realpath(folder)}
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = {name: os.path.realpath(os.path.join(parent, name)) for name in folders}
        folders[:] = [name for name in sorted(folders) if real[name] not in seen]
        seen.update(real.values())
        paths += [Path(parent, name) for name in files]
    return paths


def _check_size(data: bytes, name: str) -> None:
    """Refuse, before decoding, what would not fit in a small device's memory."""
    if len(data) > MAX_BYTES:
        raise ZottaError(f"{name} is larger than {MAX_BYTES >> 20} MB: not decoded")
    try:
        size = _size_in_header(data)
    except (struct.error, IndexError, ValueError):
        raise ZottaError(f"{name} is damaged: its header ends early") from None
    if size is None:
        raise ZottaError(f"{name} is not a JPEG, PNG, WebP, TIFF, BMP, GIF or PNM image")
    width, height = size
    if not 0 < width * height <= MAX_PIXELS:
        raise ZottaError(
            f"{name} is {width} x {height} pixels: more than {MAX_PIXELS // 10**6} million, "
            "not decoded"
        )


def _size_in_header(data: bytes) -> tuple[int, int] | None:
    """Width and height as the header declares them; None for an unknown format."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack_from(">II", data, 16)
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp_size(data)
    if data[:4] in (b"II*\0", b"MM\0*"):
        return _tiff_size(data)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return struct.unpack_from("<HH", data, 6)
    if data.startswith(b"BM"):
        (header,) = struct.unpack_from("<I", data, 14)
        width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
        return abs(width), abs(height)
    if pnm := _PNM.match(data[:4096]):
        return int(pnm[1]), int(pnm[2])
    return None


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """As libjpeg looks for it: what stands between a segment and the next marker is passed over."""
    at = 2
    while True:
        at = data.index(0xFF, at) + 1
        marker = data[at]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
            height, width = struct.unpack_from(">HH", data, at + 4)
            return width, height
        if marker not in _WITHOUT_LENGTH:
            at += 1 + max(2, struct.unpack_from(">H", data, at + 1)[0])


def _webp_size(data: bytes) -> tuple[int, int]:
    if data[12:16] == b"VP8X":
        low, middle, high = struct.unpack_from("<HHH", data, 24)
        return 1 + low + ((middle & 0xFF) << 16), 1 + (middle >> 8) + (high << 8)
    if data[12:16] == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _tiff_size(data: bytes) -> tuple[int, int]:
    order = "<" if data[:2] == b"II" else ">"
    (directory,) = struct.unpack_from(order + "I", data, 4)
    (entries,) = struct.unpack_from(order + "H", data, directory)
    size: dict[int, int] = {}
    for at in range(directory + 2, directory + 2 + 12 * entries, 12):
        tag, kind = struct.unpack_from(order + "HH", data, at)
        if tag in (256, 257):  # ImageWidth, ImageLength: SHORT or LONG
            (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), data, at + 8)
            size[tag] = max(value, size.get(tag, 0))  # one that is said twice may be meant
    return size.get(256, 0), size.get(257, 0)
