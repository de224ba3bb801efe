"""The paper's multimodal table, on the vision-language model that ships inside.

    python benchmarks/picture_questions.py table --output results/ --questions 200 --seeds 3
    python benchmarks/picture_questions.py same --questions 1000
    python benchmarks/picture_questions.py cost

`table`: right answers by kind of question, on clean and on drifted pictures and on questions harder
than in training, for every method; each stream starts from the source. What is done is kept in
--output and not done again. `same`: what adaptation changes on questions as in training, and
whether any answer loops. `cost`: tokens through the network, time and memory of each method.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from picture_methods import LIMIT, answerer

from zotta_edge.corruptions import Scale, corrupt_stream
from zotta_edge.files import replacing
from zotta_edge.models import embedded
from zotta_edge.models.picture_questions import KINDS, MATH, Level, Question, questions
from zotta_edge.progress import tracked

METHODS = ("none", "zotta", "foa", "slot", "perplexity", "none fp32", "tent")
BATCH = 8
_KEPT = 300  # digits for choosing constants


@dataclass(frozen=True)
class Condition:
    """What the pictures went through, and how hard the questions are."""

    name: str
    corruption: str | None = None
    severity: int = 3
    scale: Scale | None = None
    level: Level = "trained"


DEVELOPMENT = (  # what methods' constants were chosen on, about digits of their own
    Condition("speckle", "speckle_noise", 5, "imagenet"),
    Condition("gaussian blur", "gaussian_blur", 5),
)
CONDITIONS = (
    Condition("clean"),
    Condition("noise", "gaussian_noise", 3, "imagenet"),
    Condition("blur", "defocus_blur", 5),
    Condition("contrast", "contrast", 3),
    Condition("four digits", level="longer"),
    Condition("new questions", level="new"),
)


@dataclass(frozen=True)
class Cell:
    """One stream under one method."""

    method: str
    condition: str
    seed: int
    right: dict[str, float]  # by kind
    total: float
    tokens: float  # through the network, a question
    seconds: float  # a question
    longest: int  # characters
    empty: int


def stream(condition: Condition, count: int, seed: int) -> list[Question]:
    """The questions of a condition, about digits that training has not seen."""
    own = slice(_KEPT) if condition in DEVELOPMENT else slice(_KEPT, None)
    digits, labels = embedded.digits(10**6)[own], embedded.labels(10**6)[own]
    asked = questions(digits, labels, count, seed, condition.level)
    order = np.random.default_rng(seed).permutation(count)  # kinds come in turn
    asked = [asked[at] for at in order]
    if condition.corruption is None:
        return asked
    pictures = [question.picture[..., None] for question in asked]
    drifted = corrupt_stream(
        pictures, condition.corruption, condition.severity, seed, scale=condition.scale
    )
    pairs = zip(asked, drifted, strict=True)
    return [replace(question, picture=picture[..., 0]) for question, picture in pairs]


def run(method: str, condition: Condition, count: int, seed: int) -> tuple[Cell, list[str]]:
    """Answer a stream from the source on, in batches."""
    asked, answering = stream(condition, count, seed), answerer(method)
    started, given = time.perf_counter(), list[str]()
    for at in range(0, count, BATCH):
        given += answering.answer(asked[at : at + BATCH])
    seconds = (time.perf_counter() - started) / count
    right = np.array([a == question.answer for a, question in zip(given, asked, strict=True)])
    kinds = np.array([question.kind for question in asked])
    shares = {kind: float(right[kinds == kind].mean()) for kind in KINDS if kind in kinds}
    tokens = answering.tokens() / count
    longest, empty = max(map(len, given)), sum(not text for text in given)
    name = condition.name
    cell = Cell(method, name, seed, shares, float(right.mean()), tokens, seconds, longest, empty)
    return cell, given


def table(args: argparse.Namespace) -> None:
    """Every method on every stream; prints Markdown."""
    file = args.output / "cells.json"
    args.output.mkdir(parents=True, exist_ok=True)
    cells = [Cell(**each) for each in json.loads(file.read_text())] if file.exists() else []
    known = {(cell.method, cell.condition, cell.seed) for cell in cells}
    wanted = [
        (method, condition, seed)
        for seed in range(args.seeds)
        for condition in CONDITIONS
        for method in args.methods
        if (method, condition.name, seed) not in known
    ]
    for method, condition, seed in tracked(wanted, "streams"):
        cells.append(run(method, condition, args.questions, seed)[0])
        with replacing(file) as temporary:
            temporary.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    print(by_condition(cells, args.methods))
    print(by_kind(cells, args.methods))


def by_condition(cells: Sequence[Cell], methods: Sequence[str]) -> str:
    """Right answers in percent: mean over the seeds, and their standard deviation.

    Gains are over the same model without adaptation on the same questions.
    """
    names = [condition.name for condition in CONDITIONS]
    rows = {
        method: [
            *(_spread(_found(cells, method, name)) for name in names),
            _spread(np.mean([_gains(cells, method, name) for name in names], axis=0)),
            f"{100 * min(float(np.mean(_gains(cells, method, name))) for name in names):+.1f}",
        ]
        for method in methods
    }
    return _markdown(["method", *names, "gain, all", "worst gain"], rows)


def _gains(cells: Sequence[Cell], method: str, condition: str) -> list[float]:
    plain = _found(cells, "none fp32" if method == "tent" else "none", condition)
    if method == "none fp32":
        plain = _found(cells, method, condition)
    found = _found(cells, method, condition)
    return [one - other for one, other in zip(found, plain, strict=True)]


def by_kind(cells: Sequence[Cell], methods: Sequence[str]) -> str:
    """The same over the drifted and harder streams, by kind of question."""
    groups = {"math": MATH, "general": tuple(kind for kind in KINDS if kind not in MATH)}
    columns: dict[str, tuple[str, ...]] = groups | {kind: (kind,) for kind in KINDS}

    def shares(method: str, kinds: tuple[str, ...]) -> list[float]:
        hard = [cell for cell in cells if cell.method == method and cell.condition != "clean"]
        found = [
            (cell.seed, cell.right[kind]) for cell in hard for kind in kinds if kind in cell.right
        ]
        seeds = sorted({seed for seed, _ in found})
        return [
            float(np.mean([share for other, share in found if other == seed])) for seed in seeds
        ]

    values = {m: [_spread(shares(m, kinds)) for kinds in columns.values()] for m in methods}
    return _markdown(["not clean", *columns], values)


def same(args: argparse.Namespace) -> None:
    """What adaptation changes where nothing has drifted, and whether any answer loops."""
    rows: dict[str, list[str]] = {}
    plain: list[list[str]] = []
    for method in ("none", *(name for name in args.methods if name != "none")):
        changed, totals, more_empty, longest = [], [], 0, 0
        for seed in range(args.seeds):
            cell, given = run(method, CONDITIONS[0], args.questions, seed)
            if method == "none":
                plain.append(given)
            before = plain[seed]
            changed.append(float(np.mean([a != b for a, b in zip(given, before, strict=True)])))
            more_empty += sum(not a and bool(b) for a, b in zip(given, before, strict=True))
            totals.append(cell.total)
            longest = max(longest, cell.longest)
        rows[method] = [_spread(totals), _spread(changed), str(longest), str(more_empty)]
        print(f"{method}: done", file=sys.stderr, flush=True)
    names = ["method", "right", "answers changed", f"longest (limit {LIMIT} tokens)", "newly empty"]
    print(_markdown(names, rows))


def cost(args: argparse.Namespace) -> None:
    """Each method in a process of its own, in turns; the least of several runs."""
    found: dict[str, list[tuple[Cell, float]]] = {}
    context = multiprocessing.get_context("spawn")
    for _ in tracked(range(args.seeds), "rounds"):
        for method in args.methods:
            with context.Pool(1) as pool:
                found.setdefault(method, []).append(pool.apply(_measured, (method, args.questions)))
    plain = min(cell.seconds for cell, _ in found["none"])
    memory = min(peak for _, peak in found["none"])
    rows = {
        method: [
            f"{runs[0][0].tokens / found['none'][0][0].tokens:.1f}",
            f"{min(cell.seconds for cell, _ in runs) / plain:.1f}",
            f"{min(peak for _, peak in runs) - memory:+.0f} MB",
        ]
        for method, runs in found.items()
    }
    print(f"Plain generation: {1000 * plain:.1f} ms a question, {memory:.0f} MB.\n")
    print(_markdown(["method", "tokens, relative", "time, relative", "memory"], rows))


def _measured(method: str, count: int) -> tuple[Cell, float]:
    cell, _ = run(method, CONDITIONS[1], count, seed=0)
    return cell, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _found(cells: Sequence[Cell], method: str, condition: str) -> list[float]:
    return [cell.total for cell in cells if (cell.method, cell.condition) == (method, condition)]


def _spread(shares: Sequence[float] | NDArray[np.float64]) -> str:
    if not len(shares):
        return ""
    deviation = np.std(shares, ddof=1) if len(shares) > 1 else 0.0
    return f"{100 * np.mean(shares):.1f} ± {100 * deviation:.1f}"


def _markdown(names: Sequence[str], rows: dict[str, list[str]]) -> str:
    lines = [names, ["---"] * len(names), *([name, *row] for name, row in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    studies: dict[str, Callable[[argparse.Namespace], None]] = {
        "table": table,
        "same": same,
        "cost": cost,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=studies)
    parser.add_argument("--output", type=Path, default=Path("results"), metavar="FOLDER")
    parser.add_argument("--questions", type=int, default=200, metavar="N", help="a stream")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument(
        "--methods", type=lambda text: text.split(","), default=list(METHODS), metavar="A,B"
    )
    args = parser.parse_args(argv)
    plain = ["none", "none fp32"] if "tent" in args.methods else ["none"]  # what gains are over
    args.methods = list(dict.fromkeys([*plain[:1], *args.methods, *plain]))
    studies[args.study](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
