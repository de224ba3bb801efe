"""Predictions as CSV or JSONL, one row an image: on stdout, or in a file when the stream ends."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.format import Floats

STDOUT = "-"


class Writer(Protocol):
    def __call__(self, names: Sequence[str], probabilities: Floats, adapted: bool) -> None:
        """Write one batch."""
        ...


@contextmanager
def predictions_to(
    path: Path | None,
    labels: Sequence[str] = (),
    top_k: int = 1,
    layout: str | None = None,
) -> Iterator[Writer]:
    r"""Open a file for one stream of predictions.

    Parameters
    ----------
    path
        Where they go; `-` is stdout, None writes nothing.
    labels
        The names of the classes; without them, predictions are class numbers.
    top_k
        How many classes to write for each image.
    layout
        csv or jsonl; None: as the file's name ends, CSV on stdout.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "predictions.csv")
    >>> with predictions_to(path, ["cat", "dog"]) as write:
    ...     write(["a.png"], np.array([[0.25, 0.75]], np.float32), adapted=False)
    >>> path.read_text().splitlines()
    ['image,label,confidence,adapted', 'a.png,dog,0.750000,0']
    """
    if path is None:
        yield lambda names, probabilities, adapted: None
    elif str(path) == STDOUT:
        yield _writer(sys.stdout, layout or "csv", labels, top_k)
    else:
        layout = layout or _layout(path)
        with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as stream:
            yield _writer(stream, layout, labels, top_k)


def _layout(path: Path) -> str:
    if path.suffix not in (".csv", ".jsonl"):
        raise ZottaError(f"predictions go to a .csv or a .jsonl file, not to {path}")
    return path.suffix.removeprefix(".")


def _writer(stream: TextIO, layout: str, labels: Sequence[str], top_k: int) -> Writer:
    write_row = _csv(stream, top_k) if layout == "csv" else _jsonl(stream)

    def write(names: Sequence[str], probabilities: Floats, adapted: bool) -> None:
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
        for name, row, order in zip(names, probabilities, best, strict=True):
            top = [(_label(labels, index), float(row[index])) for index in order]
            write_row(name, top, adapted)
        if stream is sys.stdout:
            stream.flush()  # whoever reads the pipe may be waiting for the answer

    return write


def _label(labels: Sequence[str], index: int) -> str | int:
    return labels[index] if labels else int(index)


def _csv(stream: TextIO, top_k: int) -> Any:
    # RFC 4180's line ends in a file; in a pipe they would stick to the last cell.
    table = csv.writer(stream, lineterminator="\n" if stream is sys.stdout else "\r\n")
    more = [f"{what}_{rank}" for rank in range(2, top_k + 1) for what in ("label", "confidence")]
    table.writerow(["image", "label", "confidence", *more, "adapted"])

    def write_row(name: str, top: list[tuple[str | int, float]], adapted: bool) -> None:
        cells = [cell for label, p in top for cell in (label, f"{p:.6f}")]
        table.writerow([name, *cells, int(adapted)])

    return write_row


def _jsonl(stream: TextIO) -> Any:
    def write_row(name: str, top: list[tuple[str | int, float]], adapted: bool) -> None:
        entries = [{"label": label, "confidence": round(p, 6)} for label, p in top]
        row = {"image": name, **entries[0], "top": entries, "adapted": adapted}
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")

    return write_row
