"""Streams of images: stored ones in every layout, videos, cameras, paths on stdin."""

import io
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.images import Image, read_image, silent
from zotta_edge.runtime.io.labels import Labels, Written, read_labels
from zotta_edge.runtime.io.layouts import ImageSet, open_images

if TYPE_CHECKING:
    import cv2

VIDEOS = frozenset(
    {".avi", ".m4v", ".mjpeg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"}
)
FOLDERS = "folders"  # instead of a labels file: the class is the folder
ANY_NUMBER = Classes(2**31)
_DIGITS = 9  # of a camera's number
_LONGEST = 2**16  # characters of a path

Report = Callable[[str], None]

_warn = logging.getLogger("zotta_edge").warning


@dataclass(frozen=True)
class Sample:
    """One image and the name under which its prediction is written and its label is found."""

    name: str
    image: Image


class Source(ABC):
    """An ordered stream of samples. `len` is 0 where it is not known, as for a camera."""

    name: str

    @abstractmethod
    def __iter__(self) -> Iterator[Sample]: ...

    def __len__(self) -> int:
        return len(self.names())

    def __bool__(self) -> bool:
        return True  # of unknown length is not empty

    def names(self) -> list[str]:
        """Every sample's name, where it is known before the stream starts."""
        return []

    def written(self) -> Written | None:
        """The labels that the source itself has, as they are written."""
        return None

    def labels(
        self, where: str | Path | None = None, classes: Classes = ANY_NUMBER
    ) -> Labels[int] | None:
        """Class numbers by name.

        Parameters
        ----------
        where
            A CSV, an .npy, or `folders` for class folders, which then must be the model's classes.
            None takes what the source itself has, class folders where their names are classes.
        classes
            Those of the model; without them, labels are numbers.
        """
        if where is None:
            own = self.written()
            return own.recognised(classes) if own else None
        if str(where) == FOLDERS and not Path(where).exists():
            return self._class_folders().numbers(classes)
        return read_labels(where, self.names()).numbers(classes)

    def _class_folders(self) -> Written:
        own = self.written()
        if own is None or not own.folders:
            raise ZottaError(f"{self.name} has no class folders: give a labels file")
        if len(set(own.labels.values())) < 2:
            raise ZottaError(f"{self.name} has a single class folder: give a labels file")
        return own


@dataclass
class Stored(Source):
    """Images in files or in an array, as `layouts` finds them."""

    images: ImageSet
    strict: bool = False
    on_bad: Report = _warn

    def __post_init__(self) -> None:
        self.name = self.images.name

    def names(self) -> list[str]:
        return list(self.images.names)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Sample]:
        """What cannot be read is reported and skipped, or fatal with `strict`."""
        images = self.images
        if images.files:
            return _readable(zip(images.names, images.files, strict=True), self.strict, self.on_bad)
        return (Sample(name, images.read(index)) for index, name in enumerate(images.names))

    def written(self) -> Written | None:
        return self.images.written


@dataclass
class Stdin(Source):
    """Newline-separated paths, read as they arrive."""

    strict: bool
    on_bad: Report
    name: str = "stdin"

    def __iter__(self) -> Iterator[Sample]:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # names of files need not be UTF-8
        return _readable(
            ((line, Path(line)) for line in _lines() if line), self.strict, self.on_bad
        )


@dataclass
class Video(Source):
    """A video file, a camera or a network stream; a frame's name is its number."""

    name: str
    address: str | int

    def __len__(self) -> int:
        if not isinstance(self.address, str) or "://" in self.address:
            return 0
        import cv2

        capture = self._open()
        frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))  # what the container claims
        capture.release()
        return max(frames, 0)

    def __iter__(self) -> Iterator[Sample]:
        import cv2

        capture = self._open()
        try:
            for number in range(sys.maxsize):
                there, frame = capture.read()
                if not there:
                    break
                yield Sample(str(number), cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
        finally:
            capture.release()
        if number == 0:
            raise ZottaError(f"{self.name} gives no frames: is it a video, is the camera in use?")

    def _open(self) -> "cv2.VideoCapture":
        import cv2

        with silent():
            capture = cv2.VideoCapture(self.address)
        if not capture.isOpened():
            raise ZottaError(f"cannot open {self.name}: no such camera, or not a video")
        return capture


@dataclass
class Limited(Source):
    """The first samples of another source."""

    source: Source
    limit: int

    def __post_init__(self) -> None:
        self.name = self.source.name

    def __iter__(self) -> Iterator[Sample]:
        return islice(self.source, self.limit)

    def __len__(self) -> int:
        return min(len(self.source), self.limit)

    def names(self) -> list[str]:
        return self.source.names()[: self.limit]

    def written(self) -> Written | None:
        return self.source.written()


def open_source(
    spec: str | Path | Source,
    *,
    strict: bool = False,
    limit: int | None = None,
    on_bad: Report = _warn,
) -> Source:
    """Open a stream of images.

    Parameters
    ----------
    spec
        A folder, a glob, an image, a CSV of names, `.npz` / `.npy`, a video, `camera:0`,
        `rtsp://...`, or `-` for paths on stdin.
    strict
        Whether an image that cannot be read is an error.
    limit
        How many images to take at most.
    on_bad
        Is told of each image that cannot be read and is skipped.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp(), "test.npz")
    >>> np.savez(path, images=np.zeros((5, 8, 8, 3), np.uint8))
    >>> [[sample.name for sample in batch] for batch in batches(open_source(path), 2)]
    [['0', '1'], ['2', '3'], ['4']]
    """
    source = spec if isinstance(spec, Source) else _opened(str(spec), strict, on_bad)
    return source if limit is None else Limited(source, limit)


def batches(
    source: Iterable[Sample], size: int, transform: Callable[[Image], Image] | None = None
) -> Iterator[list[Sample]]:
    """Lists of `size` samples; the last may be shorter.

    Parameters
    ----------
    source
        Samples, which are taken as they are needed.
    size
        How many make a batch.
    transform
        Is applied to each image as it comes: 64 photographs fit in memory once they have the
        network's size, not before.
    """
    samples = iter(source)
    if transform:
        samples = (Sample(sample.name, transform(sample.image)) for sample in samples)
    for first in samples:
        yield [*chain([first], islice(samples, size - 1))]


def _opened(spec: str, strict: bool, on_bad: Report) -> Source:
    path = Path(os.path.expanduser(spec))
    camera = spec.removeprefix("camera:")
    if spec == "-":
        return Stdin(strict, on_bad)
    if camera.isdecimal() and len(camera) < _DIGITS and not path.exists():
        return Video(f"camera {camera}", int(camera))
    if "://" in spec:
        return Video(spec, spec)
    if path.suffix.lower() in VIDEOS and path.is_file():
        return Video(spec, str(path))
    return Stored(open_images(spec), strict, on_bad)


def _lines() -> Iterator[str]:
    """Of stdin, which may be a device that never ends one."""
    while line := sys.stdin.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise ZottaError(f"stdin has a line of {_LONGEST} characters: expected a path a line")
        yield line.rstrip("\r\n")


def _readable(paths: Iterable[tuple[str, Path]], strict: bool, on_bad: Report) -> Iterator[Sample]:
    for name, path in paths:
        try:
            yield Sample(name, read_image(path))
        except ZottaError as error:
            if strict:
                raise
            on_bad(str(error))
