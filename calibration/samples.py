"""The few images that calibration looks at: drawn, decoded, cropped, and checked for sense."""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, Preprocessing
from zotta_edge.progress import Progress
from zotta_edge.runtime.io.arrays import load_images
from zotta_edge.runtime.io.images import Image, list_images, read_image
from zotta_edge.runtime.io.preprocessing import fit, prepare

LABELS = "labels.csv"  # where a folder has one, it says which classes its images are of
MIN_SAMPLES = 8  # the paper still gains with 8 source images; sigma of fewer says little

Source = str | Path | NDArray[np.uint8] | Sequence[NDArray[np.uint8]]


@dataclass(frozen=True)
class Samples:
    """Images of one domain, as the network will see them."""

    images: Image  # [n, height, width, C]
    classes: frozenset[str] = frozenset()  # where folders or a CSV name them
    skipped: tuple[str, ...] = ()  # errors of the images that could not be read

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digests(self) -> list[str]:
        return [hashlib.sha256(image.tobytes()).hexdigest() for image in self.images]

    @property
    def fingerprint(self) -> str:
        """Of the pixels, in order: the same images by any other name are the same."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()

    def prepared(self, p: Preprocessing) -> Floats:
        return prepare(self.images, p)


@dataclass(frozen=True)
class _Entry:
    image: Path | NDArray[Any]
    label: str | None = None

    def read(self) -> NDArray[Any]:
        return read_image(self.image) if isinstance(self.image, Path) else self.image


def read_samples(
    where: Source, p: Preprocessing, count: int, seed: int, *, strict: bool = False
) -> Samples:
    """Draw `count` images from a folder, a CSV, an .npz, an .npy or an array in memory.

    A CSV is taken in its own order, from the top; anything else is drawn at random. An image that
    cannot be read is skipped for another one; with `strict` it is an error.
    """
    entries = _entries(where, p)
    if not _is_csv(where):
        order = np.random.default_rng(seed).permutation(len(entries))
        entries = [entries[index] for index in order]
    images: list[Image] = []
    labels, skipped = set[str](), list[str]()
    with Progress(f"reading {_name(where)}", min(count, len(entries))) as progress:
        for entry in entries:
            if len(images) == count:
                break
            try:
                images.append(fit(entry.read(), p))
            except ZottaError as error:
                if strict:
                    raise
                skipped.append(str(error))
            else:
                labels |= {entry.label} if entry.label else set()
                progress.advance()
    if len(images) < MIN_SAMPLES:
        lost = f" ({len(skipped)} could not be read, the first: {skipped[0]})" if skipped else ""
        raise ZottaError(
            f"{_name(where)} has {len(images)} usable images{lost}: "
            f"calibration needs at least {MIN_SAMPLES}, better 64"
        )
    return Samples(np.stack(images), frozenset(labels), tuple(skipped))


def check_drifted(source: Samples, drifted: Samples, where: Source) -> None:
    """Refuse OOD images whose clusters would say nothing about the domain."""
    name, known = _name(where), set(source.digests)
    different = set(drifted.digests)
    if len(different) < MIN_SAMPLES:
        raise ZottaError(
            f"{name} has only {len(different)} different images: "
            f"clustering needs at least {MIN_SAMPLES}"
        )
    if 2 * len(different & known) >= len(different):
        raise ZottaError(
            f"{name} holds the source images: --ood wants images of another domain, "
            "or leave it out and speckle noise is put on the source images"
        )
    if len(drifted.classes) == 1 < len(source.classes):
        raise ZottaError(
            f"{name} holds a single class ({next(iter(drifted.classes))}), the source "
            f"{len(source.classes)}: clusters would tell classes apart, not domains. "
            "Give OOD images of as many classes"
        )


def _entries(where: Source, p: Preprocessing) -> list[_Entry]:
    if not isinstance(where, str | Path):
        return [_Entry(image) for image in where]
    path = Path(where).expanduser()
    if path.suffix in (".npz", ".npy"):
        return _from_array(path, p)
    if _is_csv(path):
        return _from_csv(path)
    listed = path / LABELS
    labels = {entry.image: entry.label for entry in _from_csv(listed)} if listed.is_file() else {}
    return [
        _Entry(image, labels.get(image) or _folder(image, path)) for image in list_images(where)
    ]


def _folder(image: Path, root: Path) -> str | None:
    """The class folder of an image, where there is one between it and the root."""
    return image.parent.name if image.parent != root else None


def _is_csv(where: Source) -> bool:
    return isinstance(where, str | Path) and Path(where).suffix == ".csv"


def _from_csv(path: Path) -> list[_Entry]:
    """Rows of a file name, relative to the CSV's folder, and perhaps a label; perhaps a header."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = [[cell.strip() for cell in row] for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ZottaError(f"cannot read {path}: {error}") from error
    rows = [row for row in rows if Path(row[0]).suffix]  # a header names no file
    if not rows:
        raise ZottaError(f"{path} names no images: expected a file name in the first column")
    return [_Entry(path.parent / row[0], row[1] if len(row) > 1 else None) for row in rows]


def _from_array(path: Path, p: Preprocessing) -> list[_Entry]:
    content = load_images(path)
    height, width = content.images.shape[1:3]
    if height < p.height or width < p.width:
        raise ZottaError(
            f"{path} holds {width} x {height} images, the model takes {p.width} x {p.height}: "
            "are they meant for another model?"
        )
    labels = content.labels if content.labels is not None else [None] * len(content.images)
    return [
        _Entry(image, None if label is None else str(label))
        for image, label in zip(content.images, labels, strict=True)
    ]


def _name(where: Source) -> str:
    return str(where) if isinstance(where, str | Path) else "the batch given"
