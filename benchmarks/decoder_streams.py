"""Streams of questions that a decoder was asked: what is kept of them, and their table.

A stream is one line of a file of JSON, so that methods can run in processes of their own and what
is done is not done again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.runtime.generate.generation import Completion
from zotta_edge.runtime.generate.guard import fault

Tokens = tuple[int, ...]
HEADING = (
    "gain | changed | longest | newly empty | newly in circles "
    "| passes a prompt | tokens read a prompt | tokens a second | MB"
)


@dataclass(frozen=True)
class Stream:
    """One method on one stream of prompts, from the source on."""

    method: str
    shift: str
    seed: int  # of questions and perturbations
    right: tuple[bool, ...]
    answers: tuple[Tokens, ...]
    passes: int
    tokens: int  # through the network, of all rows
    seconds: float  # of the processor
    megabytes: float

    @property
    def key(self) -> tuple[str, str, int]:
        return self.method, self.shift, self.seed


def read(path: Path) -> list[Stream]:
    """Streams that were kept; none where the file does not exist."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [
        Stream(
            **each | {"answers": tuple(map(tuple, each["answers"])), "right": tuple(each["right"])}
        )
        for each in found
    ]


def keep(path: Path, stream: Stream) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(stream)) + "\n")


def table(streams: Iterable[Stream]) -> str:
    """A row a method; gains are paired with `none` on the same questions, with standard error."""
    by_method: dict[str, list[Stream]] = {}
    for each in streams:
        by_method.setdefault(each.method, []).append(each)
    plain = {(each.shift, each.seed): each for each in by_method.get("none", [])}
    shifts = list(dict.fromkeys(each.shift for own in by_method.values() for each in own))
    lines = [f"| method | prompts | {' | '.join(shifts)} | {HEADING} |"]
    lines.append("| --- " * (lines[0].count("|") - 1) + "|")
    for method, own in by_method.items():
        shares = [_share([each for each in own if each.shift == shift]) for shift in shifts]
        prompts = str(sum(len(each.right) for each in own))
        cells = [method, prompts, *shares, *_against(own, plain), *_cost(own)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(streams: Sequence[Stream]) -> str:
    """Percent right; of several seeds their mean and standard deviation."""
    shares = [100 * float(np.mean(each.right)) for each in streams]
    spread = f" ± {np.std(shares, ddof=1):.1f}" if len(shares) > 1 else ""
    return f"{np.mean(shares):.1f}{spread}" if shares else ""


def _against(streams: Sequence[Stream], plain: Mapping[tuple[str, int], Stream]) -> list[str]:
    """What changed against no adaptation, where that was run on the same questions."""
    pairs = [(each, plain[each.shift, each.seed]) for each in streams if _known(each, plain)]
    longest = max(len(answer) for each in streams for answer in each.answers)
    if not pairs or streams[0].method == "none":
        return ["", "", str(longest), "", ""]
    gain = _joined(pairs, lambda own, other: np.subtract(own.right, other.right, dtype=float))
    changed = _joined(pairs, lambda own, other: _differ(own.answers, other.answers))
    error = gain.std() / len(gain) ** 0.5
    faults = [
        int(_joined(pairs, lambda own, other, kind=kind: _newly(own, other, kind)).sum())
        for kind in ("empty", "going in circles")
    ]
    moved = f"{100 * gain.mean():+.1f} +- {100 * error:.1f}"
    return [moved, f"{100 * changed.mean():.0f} %", str(longest), *map(str, faults)]


def _known(stream: Stream, plain: Mapping[tuple[str, int], Stream]) -> bool:
    return (stream.shift, stream.seed) in plain


def _joined(
    pairs: Sequence[tuple[Stream, Stream]], compare: Callable[[Stream, Stream], NDArray[np.float64]]
) -> NDArray[np.float64]:
    return np.concatenate([compare(own, other) for own, other in pairs])


def _differ(answers: Sequence[Tokens], others: Sequence[Tokens]) -> NDArray[np.float64]:
    return np.array([a != b for a, b in zip(answers, others, strict=True)], float)


def _newly(stream: Stream, plain: Stream, kind: str) -> NDArray[np.float64]:
    return np.array(
        [
            _fault(answer) == kind and not _fault(other)
            for answer, other in zip(stream.answers, plain.answers, strict=True)
        ],
        float,
    )


def _fault(answer: Tokens) -> str:
    return fault(Completion(answer, (), True))


def _cost(streams: Sequence[Stream]) -> list[str]:
    prompts = sum(len(each.answers) for each in streams)
    written = sum(len(answer) for each in streams for answer in each.answers)
    passes, tokens = sum(each.passes for each in streams), sum(each.tokens for each in streams)
    speed = written / sum(each.seconds for each in streams)
    memory = max(each.megabytes for each in streams)
    return [f"{passes / prompts:.1f}", f"{tokens / prompts:.0f}", f"{speed:.1f}", f"{memory:.0f}"]
