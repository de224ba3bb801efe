"""Predictions as CSV or JSONL, one row an image, put in place when the stream ends."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.format import Floats


class Writer(Protocol):
    def __call__(self, names: Sequence[str], probabilities: Floats, adapted: bool) -> None:
        """Write one batch."""
        ...


@contextmanager
def predictions_to(
    path: Path | None, labels: Sequence[str] = (), top_k: int = 1
) -> Iterator[Writer]:
    """Open `path` (.csv or .jsonl; None writes nothing) for one stream of predictions."""
    if path is None:
        yield lambda names, probabilities, adapted: None
        return
    if path.suffix not in (".csv", ".jsonl"):
        raise ZottaError(f"predictions go to a .csv or a .jsonl file, not to {path}")
    with (
        replacing(path) as temporary,
        # File names need not be UTF-8: their other bytes are written as JSON escapes them.
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream,
    ):
        write_row = _csv(stream, top_k) if path.suffix == ".csv" else _jsonl(stream)

        def write(names: Sequence[str], probabilities: Floats, adapted: bool) -> None:
            best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
            for name, row, order in zip(names, probabilities, best, strict=True):
                top = [(_label(labels, index), float(row[index])) for index in order]
                write_row(name, top, adapted)

        yield write


def _label(labels: Sequence[str], index: int) -> str | int:
    return labels[index] if labels else int(index)


def _csv(stream: TextIO, top_k: int) -> Any:
    table = csv.writer(stream)
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
