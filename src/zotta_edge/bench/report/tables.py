"""Results as tables a person can read: corruptions down, methods across."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zotta_edge.bench.report.results import Protocol, Summary

_ACROSS = 6  # methods in one block of a table, so that it fits a terminal


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rule: int  # the first row below the line

    def text(self) -> str:
        cells = [self.header, *self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.header))]
        lines = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        ruler = "-" * (sum(widths) + 2 * (len(widths) - 1))
        body = [lines[0], ruler, *lines[1 : 1 + self.rule], ruler, *lines[1 + self.rule :]]
        return "\n".join([self.title, "", *body])

    def markdown(self) -> str:
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "\n".join([f"{self.title}\n", *(f"| {' | '.join(line)} |" for line in lines)])


def tables(protocol: Protocol, summaries: Sequence[Summary]) -> list[Table]:
    """A table for every few methods; plain inference stands in the first."""
    blocks = [summaries[start : start + _ACROSS] for start in range(0, len(summaries), _ACROSS)]
    return [table(protocol, block) for block in blocks]


def table(protocol: Protocol, summaries: Sequence[Summary]) -> Table:
    corruptions = list(dict.fromkeys(name for summary in summaries for name in summary.corruptions))
    rows = [
        (name, *(spread(summary.accuracy(name)) for summary in summaries)) for name in corruptions
    ]
    rows += [(label, *(cell(summary) for summary in summaries)) for label, cell in _LAST]
    seeds = {len(summary.by_seed) for summary in summaries}
    images = summaries[0].outcomes[0].record["images"]
    title = f"{protocol}: accuracy in %, {images} images a stream"
    if max(seeds) > 1:
        title += f", mean ± standard deviation over {max(seeds)} seeds"
    header = ("", *(summary.variant for summary in summaries))
    return Table(title, header, tuple(rows), len(corruptions))


def spread(values: Sequence[float], sign: str = "") -> str:
    """The mean over seeds, and their standard deviation where there are several."""
    if not values:
        return "-"
    text = f"{np.mean(values):{sign}.1f}"
    return f"{text} ±{np.std(values, ddof=1):.1f}" if len(values) > 1 else text


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _least_gain(summary: Summary) -> str:
    return f"{min(summary.gains.values()):+.1f}" if summary.gains else "-"


_LAST: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("mean", lambda summary: spread(summary.mean)),
    ("worst corruption", lambda summary: spread(summary.worst)),
    ("gain", lambda summary: "" if summary.is_plain else spread(summary.gain, "+")),
    ("least gain", lambda summary: "" if summary.is_plain else _least_gain(summary)),
    ("passes an image", lambda summary: f"{summary.passes:.2f}"),
    ("updates a stream", lambda summary: "" if summary.is_plain else f"{summary.updates:.0f}"),
    ("time", lambda summary: "1.00x" if summary.is_plain else times(summary.time_ratio)),
    ("memory", lambda summary: times(summary.memory_ratio)),
    (
        "images to half gain",
        lambda summary: "-" if summary.half_gain is None else str(summary.half_gain),
    ),
)
