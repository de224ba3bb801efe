"""Drawings for the report, as SVG that takes its ink from the page: dark on light or light on dark.

Imports matplotlib: never import it eagerly.
"""

import io
import re
from collections.abc import Sequence
from html import escape
from itertools import groupby, pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zotta_edge.bench.report.gain import Curve, mean_curve
from zotta_edge.bench.report.results import Outcome, Summary
from zotta_edge.bench.run.trial import LETTERS

# Stand-ins that the page's own colours replace.
_INK, _FAINT = "#010203", "#040506"
_COLOURS = (
    "#3b82c4", "#e07b39", "#2f9e6e", "#c94f7c", "#8b6fd0", "#b59322", "#21a0ab", "#d0574e",
    "#6f8f2f", "#a4744f", "#5f6fae", "#b56aa5", "#4f9d8d", "#c9a05a",
)  # fmt: skip
_PLAIN = "#8a8f98"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "zotta-edge",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "savefig.transparent": True,
}
_WINDOWS = 8  # a curve is averaged over this part of the stream
_MANY = 64  # stays in a domain; more are a blend
_FAR = 20  # times the median: on a linear axis all else would lie at the bottom
_NAME = (60.0, 11.0)  # points that a name beside a point takes, across and up


def along_stream(summaries: Sequence[Summary]) -> Figure:
    """Accuracy as the stream goes on; mean over streams and seeds."""
    visits = _visits(summaries[0].outcomes[0])
    return _by_image(summaries) if len(visits) == 1 else _by_visit(summaries, visits)


def _by_image(summaries: Sequence[Summary]) -> Figure:
    figure, axes = _figure(4.0)
    for summary, colour in _coloured(summaries):
        curve = 100 * mean_curve([outcome.correct.astype(float) for outcome in summary.outcomes])
        window = max(len(curve) // _WINDOWS, 1)
        smooth = np.convolve(curve, np.ones(window) / window, "valid")
        images = np.arange(len(smooth)) + window
        axes.plot(images, smooth, color=colour, label=summary.variant, lw=_width(summary))
    axes.set_xlabel(f"images seen (accuracy of the last {window})")
    axes.set_ylabel("accuracy, %")
    _legend(axes)
    return figure


def _by_visit(summaries: Sequence[Summary], visits: Sequence[tuple[str, int]]) -> Figure:
    """One point for each stay in a domain, above plain inference: domains differ by far more."""
    figure, axes = _figure(4.4)
    edges = np.cumsum([0, *(length for _, length in visits)])
    axes.axhline(0, color=_PLAIN, lw=2)
    for summary, colour in _coloured(summaries):
        if summary.plain and not summary.is_plain:
            curve = 100 * mean_curve(summary.differences())
            stays = [curve[a:b].mean() for a, b in pairwise(edges)]
            axes.plot(stays, "o-", color=colour, label=summary.variant, lw=1.8, ms=5)
    names = [name.replace("_", " ") for name, _ in visits]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_ylabel("accuracy above plain inference, points")
    _legend(axes)
    return figure


def accuracy_against_cost(summaries: Sequence[Summary]) -> Figure:
    figure, axes = _figure(4.0)
    plain = [summary for summary in summaries if summary.is_plain]
    for summary in plain:
        axes.axhline(float(np.mean(summary.mean)), color=_PLAIN, lw=1, ls="--")
    for summary, colour in _coloured(summaries):
        x, y = summary.passes, float(np.mean(summary.mean))
        spread = float(np.std(summary.mean, ddof=1)) if len(summary.mean) > 1 else 0.0
        axes.errorbar(x, y, yerr=spread or None, fmt="o", color=colour, ms=8, capsize=3)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.margins(0.18, 0.15)
    _annotate(
        axes,
        [(summary.passes, float(np.mean(summary.mean)), summary.variant) for summary in summaries],
    )
    axes.set_xlabel("forward passes an image")
    axes.set_ylabel("mean accuracy, %")
    return figure


def gains(summaries: Sequence[Summary]) -> Figure:
    """Points gained or lost, corruption by corruption: where does it help, can it hurt?"""
    shown = [pair for pair in _coloured(summaries) if not pair[0].is_plain and pair[0].gains]
    names = list(dict.fromkeys(name for summary, _ in shown for name in summary.gains))
    figure, axes = _figure(1.2 + 0.3 * len(names))
    axes.axvline(0, color=_INK, lw=1)
    for summary, colour in shown:
        rows = [names.index(name) for name in summary.gains]
        gains = list(summary.gains.values())
        axes.plot(gains, rows, "o", color=colour, ms=7, label=summary.variant, alpha=0.9)
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("gain over plain inference, points")
    _legend(axes)
    return figure


def purity(layers: Sequence[str], values: Sequence[float], chosen: Sequence[int]) -> Figure:
    figure, axes = _figure(3.0)
    colours = [_COLOURS[0] if index in chosen else _PLAIN for index in range(len(layers))]
    axes.bar(range(len(layers)), np.array(values) - 0.5, bottom=0.5, color=colours, width=0.7)
    axes.set_xticks(range(len(layers)), layers, rotation=35, ha="right")
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("clustering purity")
    axes.set_title("blue: the layers that adapt", fontsize=10, loc="left")
    return figure


def distance(summaries: Sequence[Summary]) -> Figure:
    """How far the parameters moved, as the method itself reports it."""
    figure, axes = _figure(3.4)
    for summary, colour in _coloured(summaries):
        curves = [
            curve for outcome in summary.outcomes if (curve := _distances(outcome)) is not None
        ]
        if curves:
            mean = mean_curve(curves)
            images = np.cumsum(summary.outcomes[0].record["batches"])[: len(mean)]
            axes.plot(images, mean, color=colour, label=summary.variant, lw=1.8)
    axes.set_xlabel("images seen")
    axes.set_ylabel("distance from source")
    axes.set_title("each in the method's own measure", fontsize=10, loc="left")
    drawn = np.concatenate([np.asarray(line.get_ydata()) for line in axes.get_lines()])
    if drawn.max(initial=0.0) > _FAR * np.median(drawn):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def has_distance(summaries: Sequence[Summary]) -> bool:
    return any(_distances(outcome) is not None for own in summaries for outcome in own.outcomes)


def as_svg(figure: Figure, title: str) -> str:
    """Inline SVG without metadata, in the page's colours; `title` is for those who do not see."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context(_STYLE):
        figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    (box,) = re.findall(r'viewBox="([^"]*)"', svg)
    opening = f'<svg viewBox="{box}" role="img" aria-label="{escape(title)}">'
    svg = opening + svg[svg.index(">") + 1 :]
    return svg.replace(_INK, "currentColor").replace(_FAINT, "var(--line)")


def _figure(height: float) -> tuple[Figure, Axes]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.4, height), layout="constrained")
        return figure, figure.subplots()


def _coloured(summaries: Sequence[Summary]) -> list[tuple[Summary, str]]:
    """Plain inference in grey; a method keeps its colour in every drawing of the same run."""
    methods = [summary.variant for summary in summaries if not summary.is_plain]
    return [
        (
            summary,
            _PLAIN
            if summary.is_plain
            else _COLOURS[methods.index(summary.variant) % len(_COLOURS)],
        )
        for summary in summaries
    ]


def _width(summary: Summary) -> float:
    return 2.6 if summary.is_plain else 1.8


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        with mpl.rc_context(_STYLE):
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), labelcolor=_INK)


def _annotate(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Names beside their points, moved up where they would lie on one another."""
    placed: list[tuple[float, float]] = []
    for x, y, text in sorted(points, key=lambda point: point[1]):
        right, up = axes.transData.transform((x, y)) * 72 / axes.figure.dpi
        taken = [other for at, other in placed if abs(at - right) < _NAME[0]]
        height = max([up - _NAME[1] / 2, *(other + _NAME[1] for other in taken)])
        placed.append((right, height))
        axes.annotate(text, (x, y), (9, height - up), textcoords="offset points", fontsize=9,
                      color=_INK)  # fmt: skip


def _visits(outcome: Outcome) -> list[tuple[str, int]]:
    """Stays in a domain; a blend of domains counts as one."""
    names = dict(zip(LETTERS, outcome.condition["corruptions"], strict=False))
    stays = [(names[letter], len(list(run))) for letter, run in groupby(outcome.record["domain"])]
    if len(stays) > _MANY:
        return [(outcome.condition["stream"], len(outcome.record["domain"]))]
    return stays


def _distances(outcome: Outcome) -> Curve | None:
    values = outcome.record["distance"]
    known = values and all(value is not None for value in values)
    return np.array(values, float) if known else None
