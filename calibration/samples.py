"""The few images that calibration looks at: drawn, decoded, cropped, and checked for sense."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, Preprocessing
from zotta_edge.progress import Progress
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.labels import Written
from zotta_edge.runtime.io.layouts import ImageSet, open_images
from zotta_edge.runtime.io.preprocessing import fit, prepare

MIN_SAMPLES = 8  # the paper still gains with 8 source images; sigma of fewer says little

Source = str | Path | NDArray[np.uint8] | Sequence[NDArray[np.uint8]]


@dataclass(frozen=True)
class Samples:
    """Images of one domain, as the network will see them."""

    images: Image  # [n, height, width, C]
    classes: frozenset[str] = frozenset()  # where folders or a CSV name them
    skipped: tuple[str, ...] = ()  # errors of the images that could not be read
    written: Written | None = None  # the labels that lie with the images
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> tuple[str, ...]:
        """The class of each image, as written; "" where nobody says."""
        known = self.written.labels if self.written else {}
        return tuple(str(known.get(name, "")) for name in self.names) or ("",) * len(self)

    @property
    def digests(self) -> list[str]:
        return [hashlib.sha256(image.tobytes()).hexdigest() for image in self.images]

    @property
    def fingerprint(self) -> str:
        """Of the pixels, in order: the same images by any other name are the same."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()

    def numbers(self, classes: Classes) -> NDArray[np.int64] | None:
        """The class of each image, -1 where it is not known; None where no labels are."""
        try:
            labels = self.written and self.written.recognised(classes)
        except ZottaError:  # of another model: nobody asked for them
            return None
        if not labels:
            return None
        return np.array([labels.get(name, -1) for name in self.names], np.int64)

    def prepared(self, p: Preprocessing) -> Floats:
        return prepare(self.images, p)


def read_samples(
    where: Source, p: Preprocessing, count: int, seed: int, *, strict: bool = False
) -> Samples:
    """Draw `count` images from a folder, a CSV, an .npz, an .npy or an array in memory.

    A CSV is taken in its own order, from the top; anything else is drawn at random. An image that
    cannot be read is skipped for another one; with `strict` it is an error.
    """
    available = images_of(where, p)
    drawn = np.random.default_rng(seed).permutation(len(available))
    order = range(len(available)) if _is_csv(where) else drawn.tolist()
    skipped: list[str] = []
    images = _read(available, order, count, p, None if strict else skipped.append)
    if len(images) < MIN_SAMPLES:
        lost = f" ({len(skipped)} could not be read, the first: {skipped[0]})" if skipped else ""
        raise ZottaError(
            f"{available.name} has {len(images)} usable images{lost}: "
            f"calibration needs at least {MIN_SAMPLES}, better 64"
        )
    labels = available.written.labels if available.written else {}
    names = [available.names[index] for index in images]
    classes = frozenset(str(labels[name]) for name in names if name in labels)
    stacked = np.stack(list(images.values()))
    return Samples(stacked, classes, tuple(skipped), available.written, tuple(names))


def _read(
    available: ImageSet,
    order: Sequence[int],
    count: int,
    p: Preprocessing,
    on_bad: Callable[[str], None] | None,
) -> dict[int, Image]:
    """The first `count` images that can be read, by index; without `on_bad` all must be."""
    images: dict[int, Image] = {}
    with Progress(f"reading {available.name}", min(count, len(order))) as progress:
        for index in order:
            if len(images) == count:
                break
            try:
                images[index] = fit(available.read(index), p)
            except ZottaError as error:
                if on_bad is None:
                    raise
                on_bad(str(error))
            else:
                progress.advance()
    return images


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


def images_of(where: Source, p: Preprocessing) -> ImageSet:
    if not isinstance(where, str | Path):
        return ImageSet(_name(where), [str(i) for i in range(len(where))], where.__getitem__)
    images = open_images(where)
    if images.array:
        _check_size(images, p)
    return images


def _check_size(images: ImageSet, p: Preprocessing) -> None:
    height, width = images.read(0).shape[:2]
    if height < p.height or width < p.width:
        raise ZottaError(
            f"{images.name} holds {width} x {height} images, the model takes "
            f"{p.width} x {p.height}: are they meant for another model?"
        )


def _is_csv(where: Source) -> bool:
    return isinstance(where, str | Path) and Path(where).suffix.lower() == ".csv"


def _name(where: Source) -> str:
    return str(where) if isinstance(where, str | Path) else "the batch given"
