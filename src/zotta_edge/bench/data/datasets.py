"""Labelled images for the benchmark: any layout of `zotta_edge.runtime.io.layouts`, with labels."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.corruptions import ALL
from zotta_edge.errors import ZottaError
from zotta_edge.files import read_text, sha256
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.layouts import LABELS, ImageSet, Shifts, open_images, open_shifts

CLEAN = "clean"  # the domain of images as they are

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
    """Labelled images, in one domain or in several domains of the same images."""

    name: str
    shifts: tuple[str, ...] = ()  # domains that the data brings along; none: they are made
    among: tuple[int, ...] | None = None  # the classes that answers are taken from; None: all

    @abstractmethod
    def images(self, domain: str, severity: int) -> Images: ...


@dataclass
class Plain(Dataset):
    """Clean images, which the benchmark corrupts."""

    name: str
    content: Images
    among: tuple[int, ...] | None = None

    def images(self, domain: str, severity: int) -> Images:
        return self.content


@dataclass
class Corrupted(Dataset):
    """Images that are corrupted already, such as ImageNet-C and CIFAR-10-C."""

    name: str
    stored: Shifts
    classes: Classes
    _read: dict[tuple[str, int], Images] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shifts = tuple(self.stored.held)

    def images(self, domain: str, severity: int) -> Images:
        if (domain, severity) not in self._read:
            stored = self.stored.images(domain, severity)
            self._read[domain, severity], self.among = _scored(stored, self.classes)
        return self._read[domain, severity]


def open_dataset(
    where: str | Path, classes: Classes, labels: Path | None = None, order: Path | None = None
) -> Dataset:
    """Open labelled images.

    Parameters
    ----------
    where
        A folder, a glob, a CSV of names, an .npz or an .npy: see `layouts`.
    classes
        Those of the model.
    labels
        A CSV or an .npy; None: what lies with the images.
    order
        A file that has the name of each class folder, one a line, in the order of the classes.
    """
    if order:
        classes = Classes(classes.count, tuple(_listed(order)))
    if shifts := open_shifts(where, ALL, labels):
        return Corrupted(str(where), shifts, classes)
    images = open_images(where)
    content, among = _scored(images.labelled_by(labels) if labels else images, classes)
    return Plain(str(where), content, among)


def check_classes(images: Images, classes: int, where: str) -> None:
    """Refuse labels that the model has no output for."""
    if len(images.labels) and images.labels.max() >= classes:
        raise ZottaError(
            f"{where} has class {images.labels.max()}, the model knows 0 to {classes - 1}: "
            "are these labels meant for another model?"
        )


def _scored(stored: ImageSet, classes: Classes) -> tuple[Images, tuple[int, ...] | None]:
    """The labelled images, and their classes if they are not all of the model's."""
    if stored.written is None:
        raise ZottaError(
            f"{stored.name} has no labels: expected {LABELS} or class folders in a folder, or "
            "`labels` in an .npz; or give --labels CSV"
        )
    known = stored.written.numbers(classes)
    scored = [index for index, name in enumerate(stored.names) if name in known]
    numbers = np.array([known[stored.names[index]] for index in scored], np.intp)
    folders = len(set(stored.written.labels.values())) if stored.written.folders else classes.count
    among = tuple(sorted(set(known.values()))) if folders < classes.count else None
    identity = _identity(_described(stored, scored), numbers)
    images = Images(numbers, lambda i: stored.read(scored[i]), identity, bool(stored.files))
    return images, among


def _described(stored: ImageSet, scored: list[int]) -> list[str]:
    """What identifies the images: names and sizes of files, the content of an array."""
    if stored.array:
        return [_content(stored.array), *([str(scored)] if len(scored) < len(stored) else [])]
    try:
        files = [stored.files[index] for index in scored]
        return [f"{file.name} {file.stat().st_size}" for file in files]
    except OSError as error:
        raise ZottaError(f"cannot read {error.filename}: {error.strerror}") from error


def _identity(images: Iterable[str], labels: Numbers) -> str:
    """A digest of the images, each identified by a text, and of their labels."""
    digest = hashlib.sha256(np.asarray(labels, np.int64).tobytes())
    for image in images:
        digest.update(image.encode())
    return digest.hexdigest()[:16]


def _listed(path: Path) -> list[str]:
    """The first word of every line: `n01440764 tench, Tinca tinca` names n01440764."""
    lines = read_text(path).splitlines()
    return [line.replace(",", " ").split()[0] for line in lines if line.strip()]


def _content(path: Path) -> str:
    return _content_as_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _content_as_of(path: Path, changed: int) -> str:
    return sha256(path)
