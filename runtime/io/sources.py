"""Where images come from: folders, globs, arrays, videos, cameras, paths on stdin.

>>> source = open_source("photos/")
>>> for batch in batches(source, 64):
...     model.predict([sample.image for sample in batch])
"""

import glob
import io
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.arrays import Labelled, load_images
from zotta_edge.runtime.io.images import Image, list_images, read_image
from zotta_edge.runtime.io.labels import class_folder, read_labels

if TYPE_CHECKING:
    import cv2

VIDEOS = frozenset(
    {".avi", ".m4v", ".mjpeg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"}
)
FOLDERS = "folders"  # instead of a labels file: the class is the folder

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

    def labels(self, where: str | Path | None = None) -> Mapping[str, int] | None:
        """Class numbers by name, from a CSV or an .npy; None asks what the source itself knows."""
        if where is None:
            return self.own_labels()
        if str(where) == FOLDERS and not Path(where).exists():
            return self.folder_labels()
        return read_labels(where, self.names())

    def own_labels(self) -> Mapping[str, int] | None:
        return None

    def folder_labels(self) -> Mapping[str, int]:
        raise ZottaError(f"{self.name} has no class folders: give a labels file")


@dataclass
class Files(Source):
    """Image files by path; what cannot be read is reported and skipped, or fatal with `strict`."""

    name: str
    paths: Mapping[str, Path]  # sample name -> file
    strict: bool
    on_bad: Report

    def names(self) -> list[str]:
        return list(self.paths)

    def __iter__(self) -> Iterator[Sample]:
        return _readable(self.paths.items(), self.strict, self.on_bad)

    def folder_labels(self) -> Mapping[str, int]:
        """Classes numbered in the order of their folders' names, as ImageNet's are."""
        folders = {name: class_folder(path) for name, path in self.paths.items()}
        numbers = {folder: number for number, folder in enumerate(sorted(set(folders.values())))}
        if len(numbers) < 2:
            raise ZottaError(f"{self.name} has a single class folder: give a labels file")
        return {name: numbers[folder] for name, folder in folders.items()}


@dataclass
class Arrays(Source):
    """Images in memory or in a mapped file; a sample's name is its index."""

    name: str
    content: Labelled

    def names(self) -> list[str]:
        return [str(index) for index in range(len(self.content.images))]

    def __len__(self) -> int:
        return len(self.content.images)

    def __iter__(self) -> Iterator[Sample]:
        for index, image in enumerate(self.content.images):
            yield Sample(str(index), np.asarray(image))

    def own_labels(self) -> Mapping[str, int] | None:
        labels = self.content.labels
        return None if labels is None else {str(i): int(label) for i, label in enumerate(labels)}


@dataclass
class Stdin(Source):
    """Newline-separated paths, read as they arrive."""

    strict: bool
    on_bad: Report
    name: str = "stdin"

    def __iter__(self) -> Iterator[Sample]:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # names of files need not be UTF-8
        lines = (line.rstrip("\r\n") for line in sys.stdin)
        return _readable(((line, Path(line)) for line in lines if line), self.strict, self.on_bad)


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
        from cv2.utils.logging import LOG_LEVEL_SILENT, setLogLevel

        level = setLogLevel(LOG_LEVEL_SILENT)  # the error below says it in one line
        try:
            capture = cv2.VideoCapture(self.address)
        finally:
            setLogLevel(level)
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

    def own_labels(self) -> Mapping[str, int] | None:
        return self.source.own_labels()

    def folder_labels(self) -> Mapping[str, int]:
        return self.source.folder_labels()


def open_source(
    spec: str | Path | Source,
    *,
    strict: bool = False,
    limit: int | None = None,
    on_bad: Report = _warn,
) -> Source:
    """A folder, a glob, an image, `.npz` / `.npy`, a video, `camera:0`, `rtsp://...`, or `-`.

    An image that cannot be read is told to `on_bad` and skipped; with `strict` it is an error.
    """
    source = spec if isinstance(spec, Source) else _opened(str(spec), strict, on_bad)
    return source if limit is None else Limited(source, limit)


def batches(
    source: Iterable[Sample], size: int, transform: Callable[[Image], Image] | None = None
) -> Iterator[list[Sample]]:
    """Lists of `size` samples; the last may be shorter.

    `transform` is applied to each image as it comes: 64 photographs fit in memory once they have
    the network's size, not before.
    """
    samples = iter(source)
    if transform:
        samples = (Sample(sample.name, transform(sample.image)) for sample in samples)
    for first in samples:
        yield [*chain([first], islice(samples, size - 1))]


def _opened(spec: str, strict: bool, on_bad: Report) -> Source:
    path = Path(spec).expanduser()
    camera = spec.removeprefix("camera:")
    if spec == "-":
        return Stdin(strict, on_bad)
    if camera.isdecimal() and not path.exists():
        return Video(f"camera {camera}", int(camera))
    if "://" in spec:
        return Video(spec, spec)
    if path.suffix.lower() in (".npy", ".npz"):
        return Arrays(spec, load_images(path))
    if path.suffix.lower() in VIDEOS and path.is_file():
        return Video(spec, str(path))
    return Files(spec, _named(list_images(spec), path), strict, on_bad)


def _named(paths: list[Path], spec: Path) -> dict[str, Path]:
    """Name files relative to the folder that was searched."""
    root = spec if spec.is_dir() else spec.parent
    while glob.has_magic(str(root)):
        root = root.parent
    return {path.relative_to(root).as_posix(): path for path in paths}


def _readable(paths: Iterable[tuple[str, Path]], strict: bool, on_bad: Report) -> Iterator[Sample]:
    for name, path in paths:
        try:
            yield Sample(name, read_image(path))
        except ZottaError as error:
            if strict:
                raise
            on_bad(str(error))
