"""Class numbers by image name. Labels are only ever used for scoring."""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.arrays import class_numbers, load_arrays

_NAMES = ("file", "filename", "file_name", "name", "image", "image_id", "imageid", "path", "id")
_DIGITS = 9  # of a class number: no model has more classes
_LABELS = ("label", "class", "target", "class_id", "class_index", "y")


class Labels(Mapping[str, int]):
    """Class numbers, found by path, by file name or by file name without its extension."""

    def __init__(self, labels: Mapping[str, int]) -> None:
        self._labels = labels
        names = Counter(short for name in labels for short in _shorter(name))
        self._short = {
            short: label
            for name, label in labels.items()
            for short in _shorter(name)
            if names[short] == 1
        }

    def __getitem__(self, name: str) -> int:
        if name in self._labels:
            return self._labels[name]
        for short in _shorter(name):
            if short in self._short:
                return self._short[short]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


def read_labels(path: str | Path, names: Sequence[str] = ()) -> Mapping[str, int]:
    """Labels from a CSV of name, class number (a header may be there), or from an .npy in order.

    With `names`, every one of them must have a label; a row with an empty label leaves its image
    unscored.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        return _from_array(path, names)
    labels, unscored = _from_csv(path)
    _check_match(path, Labels(labels | dict.fromkeys(unscored, 0)), names)
    return Labels(labels)


def _check_match(path: Path, labels: Mapping[str, int], names: Sequence[str]) -> None:
    """Every image has its own line."""
    missing = [name for name in names if name not in labels]
    if missing:
        raise ZottaError(
            f"{path} has no label for {len(missing)} of {len(names)} images, the first "
            f"{missing[0]} (the file's own first name is {next(iter(labels))}); a line with an "
            "empty label leaves an image unscored"
        )
    exact = set(labels)
    shared = Counter(PurePath(name).name for name in names if name not in exact)
    twice = [name for name, count in shared.items() if count > 1]
    if twice:
        raise ZottaError(
            f"{path} does not say which {twice[0]} it means, there are {shared[twice[0]]}: "
            "write names with their folders"
        )


def class_folder(path: Path) -> str:
    return path.parent.name


def _from_array(path: Path, names: Sequence[str]) -> Mapping[str, int]:
    (array,) = load_arrays(path).values()
    numbers = class_numbers(array, None, path)
    if names and len(numbers) < len(names):
        raise ZottaError(f"{path} has {len(numbers)} labels for {len(names)} images")
    order = names or [str(index) for index in range(len(numbers))]
    return {name: int(number) for name, number in zip(order, numbers, strict=False)}


def _from_csv(path: Path) -> tuple[dict[str, int], list[str]]:
    """Labels by name, and the names whose label is left empty."""
    rows = _rows(path)
    name_at, label_at = _columns(rows[0][1])
    if not _is_label(_cell(rows[0][1], label_at)):
        rows = rows[1:]
    labels: dict[str, int] = {}
    unscored: list[str] = []
    for line, row in rows:
        name, label = _cell(row, name_at), _cell(row, label_at)
        if not _is_label(label) or not name:
            got = ", ".join(row)[:80]
            raise ZottaError(f"{path} line {line}: expected a name and a class number, got {got}")
        if not label:
            unscored.append(name)
        elif labels.setdefault(name, int(label)) != int(label):
            raise ZottaError(f"{path} line {line}: {name} has two labels")
    if not labels:
        raise ZottaError(f"{path} holds no labels: expected lines of name,class number")
    return labels, unscored


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Line numbers and cells, separated by commas, semicolons, tabs or spaces."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ZottaError(f"cannot read {path}: {error}") from error
    first = text.split("\n", 1)[0]
    separator = next((mark for mark in ",;\t" if mark in first), " ")
    reader = csv.reader(text.splitlines(), delimiter=separator, skipinitialspace=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ZottaError(f"{path} is not a CSV file: {error}") from error
    if not rows:
        raise ZottaError(f"{path} is empty: expected lines of name,class number")
    return rows


def _columns(header: list[str]) -> tuple[int, int]:
    """Which columns hold the name and the label; the first two unless the header says so."""
    cells = [cell.strip().lower() for cell in header]
    name = next((cells.index(cell) for cell in _NAMES if cell in cells), 0)
    label = next((cells.index(cell) for cell in _LABELS if cell in cells), int(name == 0))
    return name, label


def _cell(row: list[str], at: int) -> str:
    return row[at].strip() if at < len(row) else ""


def _is_label(cell: str) -> bool:
    return not cell or (cell.isdecimal() and len(cell) <= _DIGITS)


def _shorter(name: str) -> Iterator[str]:
    """Other ways to write a name: without its folder, without its extension."""
    path = PurePath(name)
    yield path.name
    if path.stem != path.name:
        yield path.stem
