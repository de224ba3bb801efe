"""Labelled images as their publishers lay them out.

photos/*.jpg + labels.csv              any folder, names and class numbers in a CSV
imagenet-r/n01440764/*.jpg             class folders: ImageNet, -R, -Sketch, -A
imagenet-c/fog/5/n01440764/*.JPEG      ImageNet-C, and what `zotta-edge corrupt` writes
CIFAR-10-C/fog.npy + labels.npy        five severities after one another, as of CIFAR-10-C
test.npz, test.npy                     `images` and `labels`
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.corruptions import ALL
from zotta_edge.errors import ZottaError
from zotta_edge.files import sha256
from zotta_edge.runtime.io.arrays import class_numbers, load_arrays, load_images
from zotta_edge.runtime.io.images import Image, list_images, read_image
from zotta_edge.runtime.io.labels import class_folder, read_labels

CLEAN = "clean"  # the domain of images as they are
SEVERITIES = 5
LABELS = "labels.csv"

Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Images:
    """The images of one domain, read when they are asked for, and the class number of each."""

    labels: Numbers
    read: Callable[[int], Image]
    identity: str  # changes when the images do
    are_files: bool = False  # each may be damaged on its own

    def __len__(self) -> int:
        return len(self.labels)


class Dataset(ABC):
    """Labelled images, in one domain or in several that show the same."""

    name: str
    shifts: tuple[str, ...] = ()  # domains that the data brings along; none: they are made
    among: tuple[int, ...] | None = None  # the classes that answers are taken from; None: all

    @abstractmethod
    def images(self, domain: str, severity: int) -> Images: ...


@dataclass
class Plain(Dataset):
    """One domain; corruptions are put on it."""

    name: str
    content: Images
    among: tuple[int, ...] | None = None

    def images(self, domain: str, severity: int) -> Images:
        return self.content


@dataclass
class CorruptedFolders(Dataset):
    """ImageNet-C: a folder for each corruption, in it one for each severity."""

    name: str
    folders: Mapping[str, Path]
    labels: "FileLabels"
    _read: dict[Path, Images] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shifts = tuple(self.folders)

    def images(self, domain: str, severity: int) -> Images:
        folder = _held(self, self.folders, domain) / str(severity)
        if not folder.is_dir():
            raise ZottaError(f"{self.folders[domain]} has no folder {severity} for that severity")
        if folder not in self._read:
            self._read[folder], self.among = _files(folder, self.labels)
        return self._read[folder]


@dataclass
class CorruptedArrays(Dataset):
    """CIFAR-10-C: an array for each corruption, its severities one after another."""

    name: str
    files: Mapping[str, Path]
    labels: Path

    def __post_init__(self) -> None:
        self.shifts = tuple(self.files)

    def images(self, domain: str, severity: int) -> Images:
        path = _held(self, self.files, domain)
        content = load_images(path).images
        (array,) = load_arrays(self.labels).values()
        count, rest = divmod(len(content), SEVERITIES)
        if rest:
            raise ZottaError(f"{path} has {len(content)} images: expected {SEVERITIES} severities")
        # CIFAR-10-C's labels are written out for every severity; once would do.
        labels = class_numbers(array, count if len(array) == count else len(content), self.labels)
        first = (severity - 1) * count
        own = labels if len(labels) == count else labels[first : first + count]
        return Images(own.astype(np.intp), _rows(content, first), _identity([_content(path)], own))


@dataclass(frozen=True)
class FileLabels:
    """How image files get their class: a CSV, or the folder they are in."""

    csv: Path | None
    order: Path | None  # a file that names the model's classes, one a line
    classes: int  # that the model knows


def open_dataset(
    where: str | Path, classes: int, labels: Path | None = None, order: Path | None = None
) -> Dataset:
    """The dataset at `where`, for a model of so many classes."""
    path = Path(where).expanduser()
    if path.suffix.lower() in (".npz", ".npy"):
        return _from_array(path, labels, classes)
    if not path.exists():
        raise ZottaError(f"{path} does not exist: expected a folder of images, .npz or .npy")
    files = {file.stem: file for file in sorted(path.glob("*.npy")) if file.stem in ALL}
    if files:
        found = labels or path / "labels.npy"
        if not found.is_file():
            raise ZottaError(f"{path} has no labels.npy: give the labels with --labels")
        return CorruptedArrays(str(path), _in_order(files), found)
    how = FileLabels(labels or _own_labels(path), order, classes)
    if folders := _corruption_folders(path):
        return CorruptedFolders(str(path), folders, how)
    content, among = _files(path, how)
    return Plain(str(path), content, among)


def check_classes(images: Images, classes: int, where: str) -> None:
    """Refuse labels that the model has no output for."""
    if len(images.labels) and images.labels.max() >= classes:
        raise ZottaError(
            f"{where} has class {images.labels.max()}, the model knows 0 to {classes - 1}: "
            "are these labels meant for another model?"
        )


def _from_array(path: Path, labels: Path | None, classes: int) -> Dataset:
    content = load_images(path)
    own = content.labels
    if labels is not None:
        names = [str(index) for index in range(len(content.images))]
        given = read_labels(labels, names)
        own = np.array([given[name] for name in names])
    if own is None:
        raise ZottaError(f"{path} has no `labels`: give them with --labels, accuracy needs them")
    identity = _identity([_content(path)], own)
    return Plain(str(path), Images(own.astype(np.intp), _rows(content.images, 0), identity))


def _rows(content: NDArray[np.uint8], first: int) -> Callable[[int], Image]:
    return lambda index: np.asarray(content[first + index])


def _files(root: Path, how: FileLabels) -> tuple[Images, tuple[int, ...] | None]:
    """The image files below a folder, and the classes they are of where those are but some."""
    paths = list_images(root)
    names = [path.relative_to(root).as_posix() for path in paths]
    if how.csv:
        by_name = read_labels(how.csv, names)
        scored = [index for index, name in enumerate(names) if name in by_name]
        paths = [paths[index] for index in scored]
        labels = [by_name[names[index]] for index in scored]
        among = None
    else:
        numbers = _class_numbers(root, {class_folder(path) for path in paths}, how)
        labels = [numbers[class_folder(path)] for path in paths]
        among = tuple(sorted(numbers.values())) if len(numbers) < how.classes else None
    found = np.array(labels, np.intp)
    identity = _identity((f"{path.name} {path.stat().st_size}" for path in paths), found)
    return Images(found, lambda index: read_image(paths[index]), identity, True), among


def _class_numbers(root: Path, folders: set[str], how: FileLabels) -> dict[str, int]:
    """The class of each folder: as `--classes` lists them, as they are numbered, or in order."""
    if folders == {root.name}:
        raise ZottaError(f"{root} has neither {LABELS} nor class folders: give --labels CSV")
    if how.order:
        listed = {name: number for number, name in enumerate(_listed(how.order))}
        unknown = sorted(folders - set(listed))
        if unknown:
            raise ZottaError(f"{how.order} does not name the class folder {unknown[0]} of {root}")
        return {folder: listed[folder] for folder in folders}
    if all(folder.isdecimal() and int(folder) < how.classes for folder in folders):
        return {folder: int(folder) for folder in folders}
    if len(folders) == how.classes:
        return {folder: number for number, folder in enumerate(sorted(folders))}
    raise ZottaError(
        f"{root} has {len(folders)} class folders, the model {how.classes} classes: give --classes "
        "FILE with the folder name of each of the model's classes, one a line, in order"
    )


def _listed(path: Path) -> list[str]:
    """The first word of every line, so that `n01440764 tench, Tinca tinca` will do."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ZottaError(f"cannot read {path}: {error}") from error
    return [line.replace(",", " ").split()[0] for line in lines if line.strip()]


def _corruption_folders(root: Path) -> dict[str, Path]:
    """Folders named for corruptions, at the top or below groups such as `noise`."""
    if not root.is_dir():
        return {}
    found = {path.name: path for depth in ("*", "*/*") for path in root.glob(depth)}
    return _in_order({name: path for name, path in found.items() if name in ALL and path.is_dir()})


def _in_order(found: Mapping[str, Path]) -> dict[str, Path]:
    return {name: found[name] for name in ALL if name in found}


def _held(data: Dataset, held: Mapping[str, Path], domain: str) -> Path:
    if domain not in held:
        raise ZottaError(f"{data.name} has no {domain}: it holds {', '.join(held)}")
    return held[domain]


def _own_labels(root: Path) -> Path | None:
    found = root / LABELS
    return found if found.is_file() else None


def _identity(images: Iterable[str], labels: Sequence[int] | NDArray[np.integer]) -> str:
    """Of the images, each told apart by a text, and their labels.

    The names and sizes of image files tell enough; arrays of one shape have all the same size.
    """
    digest = hashlib.sha256(np.asarray(labels, np.int64).tobytes())
    for image in images:
        digest.update(image.encode())
    return digest.hexdigest()[:16]


def _content(path: Path) -> str:
    return _content_as_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _content_as_of(path: Path, changed: int) -> str:
    return sha256(path)
