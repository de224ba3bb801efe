"""One HTML file: the answer, the tables, the pictures, and where every number comes from."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from zotta_edge.bench.report.results import Outcome, Protocol, Summary
from zotta_edge.bench.report.tables import spread, table, times
from zotta_edge.files import replacing

Summaries = Mapping[Protocol, Sequence[Summary]]

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --paper: #fdfdfb; --soft: #5d6470;
  --line: #d9dbdf; --good: #1d7f4e; --bad: #b3352b; --band: #f2f3f1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #16181d; --soft: #9aa1ad;
  --line: #3a3f48; --good: #5cc493; --bad: #ef8a80; --band: #1e2127; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 62rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .6rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.8rem 0 .3rem; }
p, li { max-width: 48rem; } .soft { color: var(--soft); }
svg { width: 100%; height: auto; } figure { margin: .4rem 0 1rem; }
.scroll { overflow-x: auto; }
@media (min-width: 64rem) { .scroll { width: max-content; max-width: calc(50vw + 29rem); } }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .22rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 1.5px solid var(--ink); } tr.rule td { border-top: 1px solid var(--ink); }
tbody tr:nth-child(even) { background: var(--band); }
.up { color: var(--good); } .down { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; } code { font-size: .88em; }
"""
_NOTABLE = 1.0  # points; less is not coloured


def write_report(path: Path, summaries: Summaries, about: Mapping[str, Any]) -> None:
    """Draw the report; without matplotlib, which is an extra, say so and leave it out."""
    if find_spec("matplotlib") is None:
        print(f"no {path}: it is drawn with matplotlib, which is not installed", file=sys.stderr)
        return
    with replacing(path) as temporary:
        text = page(summaries, about)  # names of files need not be UTF-8
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def page(summaries: Summaries, about: Mapping[str, Any]) -> str:
    """The whole file; it refers to nothing outside itself."""
    body = "\n".join(_body(summaries, about))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>zotta-edge bench: {escape(about['data'])}</title>\n<style>{_STYLE}</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _body(summaries: Summaries, about: Mapping[str, Any]) -> Iterator[str]:
    models = dict.fromkeys(protocol.model for protocol in summaries)
    yield f"<h1>Adapting {escape(', '.join(models))}</h1>"
    yield f'<p class="soft">Measured online on {escape(about["data"])}: every image is seen once '
    yield "and its first answer counts; labels are used for scoring only.</p>"
    for protocol, own in summaries.items():
        yield from _section(protocol, own)
    for name in models:
        yield from _purity(next(o for p, o in summaries.items() if p.model == name)[0])
    yield from _provenance(summaries, about)


def _section(protocol: Protocol, summaries: Sequence[Summary]) -> Iterator[str]:
    from zotta_edge.bench.report import figures

    yield f"<h2>{escape(str(protocol))}</h2>"
    yield (
        "<ul>"
        + "".join(f"<li>{_verdict(summary)}</li>" for summary in _ranked(summaries))
        + "</ul>"
    )
    yield _html_table(protocol, summaries)
    drawings = [
        ("Gain by corruption", figures.gains),
        ("Accuracy against cost", figures.accuracy_against_cost),
        ("Accuracy along the stream", figures.along_stream),
    ]
    if figures.has_distance(summaries):
        drawings.append(("Distance from the source", figures.distance))
    for title, draw in drawings:
        svg = figures.as_svg(draw(summaries), f"{title}, {protocol}")
        yield f"<h3>{title}</h3>\n<figure>{svg}</figure>"


def _ranked(summaries: Sequence[Summary]) -> list[Summary]:
    compared = [summary for summary in summaries if not summary.is_plain and summary.gain]
    return sorted(compared, key=lambda summary: -float(np.mean(summary.gain)))


def _verdict(summary: Summary) -> str:
    """Does it help, can it hurt, what does it cost: in a sentence."""
    gain = float(np.mean(summary.gain))
    worst = min(summary.gains, key=summary.gains.__getitem__)
    best = max(summary.gains, key=summary.gains.__getitem__)
    cost = [f"{summary.passes:.1f} passes an image"]
    cost += [f"{times(summary.time_ratio)} the time"] if summary.time_ratio else []
    cost += (
        [f"{times(summary.memory_ratio)} the memory of plain inference"]
        if summary.memory_ratio
        else []
    )
    ends = "" if worst == best else (
        f", from {summary.gains[worst]:+.1f} ({_words(worst)}) to {summary.gains[best]:+.1f} "
        f"({_words(best)})"
    )  # fmt: skip
    speed = (
        f" Half of the gain is there after {summary.half_gain} images." if summary.half_gain else ""
    )
    kind = "up" if gain > 0 else "down"
    return (
        f"<b>{escape(summary.variant)}</b> "
        f'<span class="{kind}">{spread(summary.gain, "+")} points</span>'
        f"{escape(ends)}; {', '.join(cost)}.{speed}"
    )


def _html_table(protocol: Protocol, summaries: Sequence[Summary]) -> str:
    shown = table(protocol, summaries)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in shown.header)
    rows = []
    for number, (first, *cells) in enumerate(shown.rows):
        marks = [_mark(summary, first) for summary in summaries]
        texts = "".join(
            f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(cells, marks, strict=True)
        )
        rule = ' class="rule"' if number == shown.rule else ""
        rows.append(f"<tr{rule}><td>{escape(_words(first))}</td>{texts}</tr>")
    return (
        f'<p class="soft">{escape(shown.title)}</p>\n<div class="scroll"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _mark(summary: Summary, corruption: str) -> str:
    """Green where the method gained on plain inference, red where it lost."""
    gain = 0.0 if summary.is_plain else summary.gains.get(corruption, 0.0)
    if abs(gain) < _NOTABLE:
        return ""
    return f' class="{"up" if gain > 0 else "down"}" title="{gain:+.1f} points"'


def _purity(summary: Summary) -> Iterator[str]:
    from zotta_edge.bench.report import figures

    model = summary.outcomes[0].record["model"]
    if not model["purity"]:
        return
    drawing = figures.purity(model["layers"], model["purity"], model["chosen"])
    yield f"<h2>Layers of {escape(model['file'])}</h2>"
    yield "<p>How well two clusters of a layer's features match the two domains, source and "
    yield "drifted: 0.5 not at all, 1 perfectly. Calibration measured it.</p>"
    yield f"<figure>{figures.as_svg(drawing, 'Clustering purity by layer')}</figure>"


def _provenance(summaries: Summaries, about: Mapping[str, Any]) -> Iterator[str]:
    outcomes = [
        outcome for own in summaries.values() for summary in own for outcome in summary.outcomes
    ]
    rows = {
        "command": f"<code>{escape(about['command'])}</code>",
        "CPU": escape(about["cpu"]),
        "threads": _different(outcomes, lambda record: str(record["threads"])),
        "versions": _different(outcomes, _versions),
        "seeds": _different(outcomes, lambda record: str(record["condition"]["seed"])),
        "models": _different(outcomes, _model),
    }
    if about["skipped"]:
        rows["skipped"] = "<br>".join(escape(reason) for reason in about["skipped"])
    yield "<h2>Where the numbers come from</h2>"
    yield "<dl>" + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows.items())
    yield "</dl>"
    yield '<p class="soft">Gain: points above plain inference of the same file on the same '
    yield "images. Passes: full forward passes executed an image, the prediction included. Time: "
    yield "against plain inference in the same process. Memory: peak resident size against that of "
    yield "a process that only predicts. Half of the gain: see <code>docs/bench.md</code>.</p>"


def _different(outcomes: Sequence[Outcome], text: Any) -> str:
    return escape(", ".join(dict.fromkeys(text(outcome.record) for outcome in outcomes)))


def _versions(record: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value}" for name, value in record["versions"].items())


def _model(record: Mapping[str, Any]) -> str:
    model = record["model"]
    return f"{model['file']} ({model['precision']}, sha256 {model['sha256'][:16]})"


def _words(name: str) -> str:
    return name.replace("_", " ")
