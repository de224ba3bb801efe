"""How stored images may lie, and the labels that lie with them: the one place that knows.

photos/*.jpg                           any folder, a glob or a single image
photos/*.jpg + photos/labels.csv       names and labels in a CSV
imagenet-r/n01440764/*.jpg             class folders: ImageNet, -R, -Sketch, -A
some.csv                               names relative to the CSV's folder, perhaps with labels
test.npz, test.npy                     `images` and `labels`; labels.npy beside an .npy
imagenet-c/fog/5/n01440764/*.JPEG      ImageNet-C, and what `zotta-edge corrupt` writes
CIFAR-10-C/fog.npy + labels.npy        five severities after one another, as in CIFAR-10-C

To read a new layout, write a function that returns its `ImageSet` and call it in `open_images`; for
images under several corruptions, a `Shifts` in `open_shifts`.
"""

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.arrays import Labelled, class_numbers, load_array, load_images
from zotta_edge.runtime.io.classes import Label
from zotta_edge.runtime.io.images import Image, list_images, read_image
from zotta_edge.runtime.io.labels import Labels, Written, by_name, one_label_each, read_labels
from zotta_edge.runtime.io.tables import read_rows

LABELS, ARRAY_LABELS = "labels.csv", "labels.npy"  # where they are found without being named
SEVERITIES = 5


@dataclass(frozen=True)
class ImageSet:
    """Images in order, each read when it is asked for.

    Parameters
    ----------
    name
        What errors call it: the path as it was given.
    names
        The name of each image, by which its label is found and its prediction is written.
    read
        The image of an index, uint8 [H, W], [H, W, 1] or [H, W, 3].
    files
        The file of each image; empty where one file holds them all.
    array
        The file that holds them all.
    written
        The labels that lie with the images, as they are written; None where there are none.
    """

    name: str
    names: Sequence[str]
    read: Callable[[int], Image]
    files: Sequence[Path] = ()
    array: Path | None = None
    written: Written | None = None

    def __len__(self) -> int:
        return len(self.names)

    def labelled_by(self, path: str | Path) -> "ImageSet":
        """The same images with the labels of a file, which must list every one of them."""
        return replace(self, written=read_labels(path, self.names))

    def spread(self, count: int) -> "ImageSet":
        """At most `count` of them, evenly spaced: class folders lie one after another."""
        if len(self) <= count:
            return self
        places = [len(self) * index // count for index in range(count)]
        return replace(
            self,
            names=[self.names[place] for place in places],
            read=lambda index: self.read(places[index]),
            files=[self.files[place] for place in places] if self.files else (),
        )


def open_images(where: str | Path) -> ImageSet:
    """Find the images at `where`.

    Parameters
    ----------
    where
        A folder of images or of class folders, a glob, an image file, a CSV of names, an .npz or
        an .npy.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "test.npz", images=np.zeros((2, 8, 8, 3), np.uint8), labels=[4, -1])
    >>> images = open_images(folder / "test.npz")
    >>> images.names, images.read(1).shape, dict(images.written.labels)
    (['0', '1'], (8, 8, 3), {'0': 4})
    """
    path = Path(os.path.expanduser(where))
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        return in_memory(str(where), load_images(path), path)
    if suffix == ".csv":
        return _from_list(path)
    return _from_files(where)


def in_memory(name: str, content: Labelled, path: Path | None = None) -> ImageSet:
    """The images of an array, named by their index; `path` is the file they are from."""
    names = [str(index) for index in range(len(content.images))]
    labels = content.labels
    origin = str(path or name)
    beside = path.with_name(ARRAY_LABELS) if path else None
    if labels is None and beside and beside.is_file() and path != beside:
        array = load_array(beside)
        if len(array) == len(names):  # CIFAR-10-C's own are of all five severities
            labels, origin = class_numbers(array, None, beside), str(beside)
    written = None
    if labels is not None:
        written = Written(origin, Labels(by_name(names, labels.tolist())))
    return ImageSet(name, names, _rows(content.images), array=path, written=written)


def _rows(content: NDArray[Any], first: int = 0) -> Callable[[int], Image]:
    return lambda index: np.asarray(content[first + index])


def _from_list(path: Path) -> ImageSet:
    """A CSV of names, which are relative to its folder."""
    rows = read_rows(path)
    if not rows:
        raise ZottaError(f"{path} names no images: expected a file name a line")
    files = [path.parent / row.name for row in rows]
    listed = one_label_each(path, rows)
    written = Written(str(path), Labels(listed)) if any(listed.values()) else None
    return _of_files(str(path), [row.name for row in rows], files, written)


def _from_files(where: str | Path) -> ImageSet:
    """A folder, a glob or an image; labels are in the folder's CSV or are its class folders."""
    files, root = list_images(where), _root(where)
    names = [file.relative_to(root).as_posix() for file in files]
    if (root / LABELS).is_file():
        written = read_labels(root / LABELS).of(names)
    else:
        written = _class_folders(root, names)
    return _of_files(str(where), names, files, written if len(written.labels) else None)


def _of_files(
    name: str, names: Sequence[str], files: Sequence[Path], written: Written | None
) -> ImageSet:
    return ImageSet(name, names, lambda index: read_image(files[index]), files, written=written)


def _class_folders(root: Path, names: Sequence[str]) -> Written:
    """The folder of each image is its class; one that lies at the root has none."""
    folders: dict[str, Label | None] = {name: Path(name).parent.name or None for name in names}
    return Written(f"the class folders of {root}", Labels(folders), folders=True)


def _root(where: str | Path) -> Path:
    """The folder that names are relative to."""
    path = Path(os.path.expanduser(where))
    root = path if path.is_dir() else path.parent
    while glob.has_magic(str(root)):
        root = root.parent
    return root


@dataclass(frozen=True)
class Shifts(ABC):
    """The same images under several corruptions, each at severities 1 to 5.

    Parameters
    ----------
    name
        What errors call it: the path as it was given.
    held
        Where each corruption lies.
    labels
        A file of labels that holds for all of them; None: each has its own.
    """

    name: str
    held: Mapping[str, Path]
    labels: Path | None = None

    def images(self, shift: str, severity: int) -> ImageSet:
        """The images of one corruption at one severity."""
        if shift not in self.held:
            raise ZottaError(f"{self.name} has no {shift}: it holds {', '.join(self.held)}")
        return self._read(self.held[shift], severity)

    @abstractmethod
    def _read(self, path: Path, severity: int) -> ImageSet: ...


class ShiftFolders(Shifts):
    """ImageNet-C: a folder for each corruption, in it one for each severity."""

    def _read(self, path: Path, severity: int) -> ImageSet:
        folder = path / str(severity)
        if not folder.is_dir():
            raise ZottaError(f"{path} has no folder {severity} for that severity")
        images = open_images(folder)
        return images.labelled_by(self.labels) if self.labels else images


class ShiftArrays(Shifts):
    """CIFAR-10-C: an array for each corruption, its severities one after another."""

    def _read(self, path: Path, severity: int) -> ImageSet:
        content = load_images(path).images
        count, rest = divmod(len(content), SEVERITIES)
        if rest:
            raise ZottaError(f"{path} has {len(content)} images: expected {SEVERITIES} severities")
        first = (severity - 1) * count
        names = [str(index) for index in range(count)]
        written = Written(str(self.labels), Labels(by_name(names, self._numbers(count, first))))
        return ImageSet(str(path), names, _rows(content, first), array=path, written=written)

    def _numbers(self, count: int, first: int) -> list[int]:
        """CIFAR-10-C's labels are written out for every severity; once would do."""
        if self.labels is None or not self.labels.is_file():
            raise ZottaError(f"{self.name} has no {ARRAY_LABELS}: give the labels with --labels")
        array = load_array(self.labels)
        once = len(array) == count
        numbers = class_numbers(array, count if once else SEVERITIES * count, self.labels)
        return [int(number) for number in (numbers if once else numbers[first : first + count])]


def open_shifts(
    where: str | Path, known: Sequence[str], labels: Path | None = None
) -> Shifts | None:
    """Find images that are stored under several corruptions.

    Parameters
    ----------
    where
        A folder laid out like ImageNet-C or CIFAR-10-C.
    known
        The names of corruptions to look for; they are held in this order.
    labels
        A file of labels; None: `labels.npy` or `labels.csv` in the folder, or class folders.

    Returns
    -------
    None where the folder holds no corruption.
    """
    root = Path(os.path.expanduser(where))
    if not root.is_dir():
        return None
    files = {path.stem: path for path in root.glob("*.npy")}
    if arrays := {name: files[name] for name in known if name in files}:
        return ShiftArrays(str(where), arrays, labels or root / ARRAY_LABELS)
    paths = {path.name: path for depth in ("*", "*/*") for path in root.glob(depth)}
    if folders := {name: paths[name] for name in known if name in paths and paths[name].is_dir()}:
        own = root / LABELS
        return ShiftFolders(str(where), folders, labels or (own if own.is_file() else None))
    return None
