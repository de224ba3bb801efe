"""Image files to RGB uint8 arrays [height, width, 3], with OpenCV.

Alpha is dropped, not composited: that is what PIL's `convert("RGB")` does, so it is what the
classifiers were trained on. Sixteen-bit images keep their high byte. EXIF orientation is applied.
"""

import glob
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.stills import MAX_BYTES, MAX_PIXELS, Still, still

Image = NDArray[np.uint8]

EXTENSIONS = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp"})
_STARS = re.compile(r"(|.*?/)\*\*(?:/(.*))?$", re.DOTALL)  # before and behind the first `**`
# OpenCV's own limit, for headers that it reads otherwise than we do; it looks when it is imported.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))


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
        about = Path(path).stat()
        if not stat.S_ISREG(about.st_mode):  # a pipe would be waited for, a device read for ever
            raise ZottaError(f"{path} is not a file: expected an image")
        if about.st_size > MAX_BYTES:
            raise ZottaError(f"{path} is larger than {MAX_BYTES >> 20} MB: not read")
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)  # it may have grown
    except (OSError, ValueError) as error:  # ValueError: a name with a null in it
        reason = getattr(error, "strerror", None) or error
        raise ZottaError(f"cannot read {path}: {reason}") from error
    return decode(data, str(path))


def decode(data: bytes, name: str = "the image") -> Image:
    """Decode an image file held in memory; `name` is what an error calls it."""
    return decode_still(still(data, name), name)


def decode_still(image_file: Still, name: str = "the image") -> Image:
    """`decode` for a file that was taken apart already."""
    import cv2

    try:
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        with silent():
            image = cv2.imdecode(np.frombuffer(image_file.data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise ZottaError(f"{name} is damaged or of an unsupported kind: cannot be decoded")
    rgb: Image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)
    return _upright(rgb, image_file.orientation)


@contextmanager
def silent() -> Iterator[None]:
    """Without OpenCV's own log: what fails is said in one line of ours."""
    import cv2

    place: Any = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # OpenCV 4, 5
    level = place.setLogLevel(0)
    try:
        yield
    finally:
        place.setLogLevel(level)


def _upright(image: Image, orientation: int) -> Image:
    """As EXIF's orientation says it is to be seen."""
    if orientation > 4:
        image = image.swapaxes(0, 1)
    rows, columns = (-1 if orientation in turned else 1 for turned in ((3, 4, 7, 8), (2, 3, 6, 7)))
    return np.ascontiguousarray(image[::rows, ::columns])


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
    path = Path(os.path.expanduser(where))
    if path.is_dir():
        paths = _walk(path) if recursive else [p for p in path.iterdir() if p.is_file()]
    elif path.is_file():
        return [path]
    elif glob.has_magic(str(where)):
        paths = [p for p in set(_globbed(path.as_posix())) if p.is_file()]
    else:
        what = "is not a file" if path.exists() else "does not exist"
        raise ZottaError(f"{where} {what}: expected a folder of images, a glob or a file")
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


def _globbed(pattern: str) -> Iterator[Path]:
    """What glob finds, whose own `**` follows links that lead back up for ever."""
    match = _STARS.match(pattern)
    if match is None:
        yield from map(Path, glob.glob(pattern))
        return
    for top in glob.glob(match[1]) if match[1] else ["."]:
        for parent, _ in _folders(top):
            yield from _globbed(os.path.join(glob.escape(parent), match[2] or "*"))


def _walk(folder: Path) -> list[Path]:
    """Every file below `folder`."""
    return [Path(parent, name) for parent, files in _folders(folder) for name in files]


def _folders(folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Every folder from `folder` on and its files, through symlinks, but never in a circle."""
    seen = {os.path.realpath(folder)}
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = {name: os.path.realpath(os.path.join(parent, name)) for name in folders}
        folders[:] = [name for name in sorted(folders) if real[name] not in seen]
        seen.update(real.values())
        yield parent, files
