"""Which class an image is of, as files and folders say it. Labels are only ever used for scoring.

A label is a class name, where the model file has names, or a class number, counted from 0. An empty
label and -1 both mean: not labelled.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TypeVar

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.arrays import class_numbers, load_array
from zotta_edge.runtime.io.classes import Classes, Label, folder_numbers
from zotta_edge.runtime.io.tables import Row, read_rows

T = TypeVar("T")


class Labels(Mapping[str, T]):
    """Labels by path, by file name, or by file name without its extension.

    Parameters
    ----------
    listed
        The label of each image, by name; None for one that is listed and not labelled.

    Examples
    --------
    >>> labels = Labels({"x/a.png": 3, "x/b.png": None})
    >>> labels["x/a.png"], labels["a.png"], labels["a"]
    (3, 3, 3)
    >>> "x/b.png" in labels, labels.lists("x/b.png")
    (False, True)
    """

    def __init__(self, listed: Mapping[str, T | None]) -> None:
        self.listed = listed

    @cached_property
    def _short(self) -> dict[str, T | None]:
        """The shorter names that mean a single image."""
        count = Counter(short for name in self.listed for short in _shorter(name))
        return {
            short: label
            for name, label in self.listed.items()
            for short in _shorter(name)
            if count[short] == 1
        }

    def lists(self, name: str) -> bool:
        """Whether an image is listed, labelled or not."""
        return name in self.listed or any(short in self._short for short in _shorter(name))

    def __getitem__(self, name: str) -> T:
        if name in self.listed:
            label = self.listed[name]
        else:
            shorter = (self._short[short] for short in _shorter(name) if short in self._short)
            label = next(shorter, None)
        if label is None:
            raise KeyError(name)
        return label

    def __iter__(self) -> Iterator[str]:
        return (name for name, label in self.listed.items() if label is not None)

    def __len__(self) -> int:
        return sum(label is not None for label in self.listed.values())


@dataclass(frozen=True)
class Written:
    """Labels as they are written, and where: in a file, or as the names of folders."""

    origin: str
    labels: Labels[Label]
    folders: bool = False

    def numbers(self, classes: Classes) -> Labels[int]:
        """The class number of each image; a label that is no class of the model is an error."""
        if self.folders:
            return self._mapped(folder_numbers(set(self.labels.values()), classes, self.origin))
        for name, label in self.labels.items():
            if classes.find(label) is None:
                raise ZottaError(f"{self.origin}: {name} is labelled {classes.refusal(label)}")
        return self._mapped({label: classes.find(label) for label in set(self.labels.values())})

    def recognised(self, classes: Classes) -> Labels[int] | None:
        """As `numbers`, for labels that nobody asked for: folders may mean something else."""
        if not self.folders:
            return self.numbers(classes)
        numbers = {folder: classes.find(folder) for folder in set(self.labels.values())}
        known = {number for number in numbers.values() if number is not None}
        return self._mapped(numbers) if len(known) > 1 else None

    def of(self, names: Sequence[str]) -> "Written":
        """The labels of these images alone."""
        return replace(self, labels=Labels({name: self.labels.get(name) for name in names}))

    def _mapped(self, numbers: Mapping[Label, int | None]) -> Labels[int]:
        listed = self.labels.listed.items()
        return Labels({name: None if label is None else numbers[label] for name, label in listed})


def read_labels(path: str | Path, names: Sequence[str] = ()) -> Written:
    r"""Read the labels of images from a file.

    Parameters
    ----------
    path
        A CSV of name, label (see `read_rows`), or an .npy of class numbers in the images' order.
    names
        The images that must be listed; without them the file is taken as it is.

    Returns
    -------
    The labels as they are written: `numbers` makes class numbers of them.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "labels.csv")
    >>> _ = path.write_text("a.png,dog\nb.png,0\nc.png,\n")
    >>> labels = read_labels(path, ["a.png", "b.png", "c.png"])
    >>> dict(labels.numbers(Classes(2, ("cat", "dog"))))
    {'a.png': 1, 'b.png': 0}
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        return Written(str(path), Labels(_from_array(path, names)))
    written = Written(str(path), Labels(_from_csv(path)))
    if not names:
        return written
    _check_match(path, written.labels, names)
    return written.of(names)


def _check_match(path: Path, labels: Labels[Label], names: Sequence[str]) -> None:
    """Every image has its own line."""
    missing = [name for name in names if not labels.lists(name)]
    if missing:
        raise ZottaError(
            f"{path} has no label for {len(missing)} of {len(names)} images, the first "
            f"{missing[0]} (the file's own first name is {next(iter(labels.listed))}); a line with "
            "an empty label leaves an image unscored"
        )
    exact = set(labels.listed)
    shared = Counter(PurePath(name).name for name in names if name not in exact)
    twice = [name for name, count in shared.items() if count > 1]
    if twice:
        raise ZottaError(
            f"{path} does not say which {twice[0]} it means, there are {shared[twice[0]]}: "
            "write names with their folders"
        )


def _from_array(path: Path, names: Sequence[str]) -> dict[str, Label | None]:
    array = load_array(path)
    numbers = class_numbers(array, None, path)
    if names and len(numbers) < len(names):
        raise ZottaError(f"{path} has {len(numbers)} labels for {len(names)} images")
    order = names or [str(index) for index in range(len(numbers))]
    return by_name(order, numbers.tolist())


def by_name(names: Sequence[str], numbers: Sequence[int]) -> dict[str, Label | None]:
    """Class numbers by name; -1 is none."""
    pairs = zip(names, numbers, strict=False)
    return {name: None if number == -1 else number for name, number in pairs}


def _from_csv(path: Path) -> dict[str, Label | None]:
    listed = one_label_each(path, read_rows(path))
    if not any(listed.values()):
        raise ZottaError(f"{path} holds no labels: expected lines of name,label")
    return listed


def one_label_each(path: Path, rows: Sequence[Row]) -> dict[str, Label | None]:
    """The label of each name; a name that has two is an error."""
    listed: dict[str, Label | None] = {}
    for row in rows:
        label = row.label or None
        if listed.setdefault(row.name, label) != label:
            raise ZottaError(f"{path} line {row.line}: {row.name} has two labels")
    return listed


def _shorter(name: str) -> Iterator[str]:
    """Other ways to write a name: without its folder, without its extension."""
    path = PurePath(name)
    yield path.name
    if path.stem != path.name:
        yield path.stem
