"""CSV files that list images: a name a line, and perhaps the label of each."""

import csv
from dataclasses import dataclass
from pathlib import Path, PurePath

from zotta_edge.errors import ZottaError
from zotta_edge.files import read_text
from zotta_edge.runtime.io.images import EXTENSIONS

_LINES = 2_000_000  # which take 0.6 GB
UNLABELLED = ("", "-1")

_NAMES = ("file", "filename", "file_name", "filepath", "path", "name", "image", "image_id",
          "imageid", "id")  # fmt: skip
_LABELS = ("label", "class", "target", "class_id", "class_index", "class_name", "y")


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a list."""

    line: int
    name: str
    label: str  # as it is written; "" where there is none


def read_rows(path: str | Path) -> list[Row]:
    r"""Read a list of images.

    Parameters
    ----------
    path
        A text file. Cells are separated by commas, semicolons, tabs or spaces, whichever its first
        line has. The name comes first and the label second, unless a header says otherwise.

    Returns
    -------
    The rows in order, without the header. An empty label and -1 both mean: not labelled.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "labels.csv")
    >>> _ = path.write_text("label;file\n3;a.png\n-1;b.png\n")
    >>> [(row.name, row.label) for row in read_rows(path)]
    [('a.png', '3'), ('b.png', '')]
    """
    path = Path(path)
    cells = _cells(path)
    name_at, label_at = _columns(cells[0][1])
    rows = [Row(line, _cell(row, name_at), _cell(row, label_at)) for line, row in cells]
    if _is_header(rows, cells[0][1]):
        rows = rows[1:]
    for row in rows:
        if not row.name:
            raise ZottaError(f"{path} line {row.line} names no image: expected name,label")
    return [Row(row.line, row.name, "") if row.label in UNLABELLED else row for row in rows]


def is_image(name: str) -> bool:
    """Whether a name ends like that of an image file."""
    return PurePath(name).suffix.lower() in EXTENSIONS


def _cells(path: Path) -> list[tuple[int, list[str]]]:
    """Line numbers and cells of the lines that are not empty."""
    lines = read_text(path, encoding="utf-8-sig").splitlines()
    if len(lines) > _LINES:
        raise ZottaError(f"{path} has {len(lines)} lines: at most {_LINES}")
    if not any(line.strip() for line in lines):
        raise ZottaError(f"{path} is empty: expected lines of name,label")
    separator = _separator(next(line for line in lines if line.strip()))
    if separator is None:
        return [(at, [line]) for at, line in enumerate(lines, 1) if line.strip()]
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ZottaError(f"{path} is not a CSV file: {error}") from error


def _separator(line: str) -> str | None:
    """None where a line is a single name, which may have spaces in it."""
    mark = next((mark for mark in ",;\t" if mark in line), None)
    return mark or (None if is_image(line) else " ")


def _columns(header: list[str]) -> tuple[int, int]:
    """Which columns hold the name and the label; the first two unless the header says so."""
    cells = [cell.strip().lower() for cell in header]
    name = next((cells.index(cell) for cell in _NAMES if cell in cells), 0)
    label = next((cells.index(cell) for cell in _LABELS if cell in cells), int(name == 0))
    return name, label


def _is_header(rows: list[Row], first: list[str]) -> bool:
    """A row with the name of a column in it, or a word above a column of numbers."""
    if is_image(rows[0].name) or _is_number(rows[0].label):
        return False
    named = any(cell.strip().lower() in (*_NAMES, *_LABELS) for cell in first)
    return named or (bool(rows[0].label) and all(_is_number(row.label) for row in rows[1:]))


def _is_number(label: str) -> bool:
    return label.removeprefix("-").isdecimal()


def _cell(row: list[str], at: int) -> str:
    return row[at].strip() if at < len(row) else ""
