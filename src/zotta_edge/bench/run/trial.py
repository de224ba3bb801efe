"""One condition, measured in a process of its own: `python -m zotta_edge.bench.run.trial < task`.

A fresh process makes the peak of its resident memory that of the method alone. Plain inference of
the same file answers every few batches too, for a ratio of times that a busy machine cannot bend.
"""

import json
import os
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.bench.run.origin import Origin
from zotta_edge.bench.run.subjects import Spec, Subject
from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.format import Preprocessing
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.job import Meter, versions

PLAIN_EVERY = 4  # batches at most; plain inference answers the first of them as well
# A domain each: the 15 corruptions in five severities, and some more.
LETTERS = string.ascii_letters + "".join(map(chr, range(0x100, 0x180)))


@dataclass(frozen=True)
class Task:
    """A condition as JSON can hold it, for the process that measures it."""

    subject: Spec
    pixels: Preprocessing
    arrays: Sequence[str]  # files, one a domain
    domain: str  # of each sample, as a letter
    rows: Sequence[int]
    labels: Sequence[int]
    batches: Sequence[tuple[int, int]]
    among: Sequence[int] | None  # classes that answers are taken from
    parent: int  # process that wants the result; 0: this one
    output: str
    record: Mapping[str, Any]  # stored with the result as it is

    @classmethod
    def from_json(cls, text: str) -> "Task":
        content = json.loads(text)
        origin = content["subject"]["origin"]
        content["subject"]["origin"] = origin and Origin(**origin)
        content["subject"] = Spec(**content["subject"])
        return cls(**content | {"pixels": Preprocessing(**content["pixels"])})

    def images(self, first: int, last: int) -> list[NDArray[np.uint8]]:
        """Copied out of files that are closed again at once."""
        arrays = {
            letter: np.load(self.arrays[LETTERS.index(letter)], mmap_mode="r")
            for letter in set(self.domain[first:last])
        }
        return [np.array(arrays[self.domain[i]][self.rows[i]]) for i in range(first, last)]

    def correct(self, result: Result, first: int, last: int) -> str:
        logits = result.logits if self.among is None else result.logits[:, list(self.among)]
        answers = logits.argmax(axis=1)
        classes = answers if self.among is None else np.array(self.among)[answers]
        pairs = zip(classes, self.labels[first:last], strict=True)
        return "".join("01"[int(answer == label)] for answer, label in pairs)


@dataclass
class Trace:
    """What is recorded for each image or batch."""

    correct: list[str] = field(default_factory=list)
    adapted: list[str] = field(default_factory=list)
    drift: list[float | None] = field(default_factory=list)
    distance: list[float | None] = field(default_factory=list)

    def add(self, correct: str, result: Result, status: Mapping[str, Any]) -> None:
        self.correct.append(correct)
        self.adapted.append("01"[int(result.adapted)])
        self.drift.append(_short(result.drift))
        self.distance.append(_short(status.get("distance")))


def run(task: Task) -> dict[str, Any]:
    """Measure one condition."""
    subject, plain = task.subject.open()
    return dict(task.record) | measure(task, subject, plain)


@dataclass
class InTurn:
    """Conditions of one method in this process, which opens it once and resets it before each."""

    spec: Spec | None = None
    opened: tuple[Subject, Subject | None] | None = None

    def run(self, task: Task) -> None:
        if self.opened is None or self.spec != task.subject:
            self.spec, self.opened = task.subject, task.subject.open()
        self.opened[0].reset()
        unknown = {"peak": None}  # it would be that of all conditions so far
        store(task, dict(task.record) | measure(task, *self.opened) | unknown)


def store(task: Task, outcome: Mapping[str, Any]) -> None:
    with replacing(Path(task.output)) as temporary:
        temporary.write_text(json.dumps(outcome) + "\n")


def measure(task: Task, subject: Subject, plain: Subject | None) -> dict[str, Any]:
    own, other, trace = Meter(), Meter(), Trace()
    compared, every = 0, min(max(len(task.batches) // 4, 1), PLAIN_EVERY)
    for index, (first, last) in enumerate(task.batches):
        if task.parent not in (0, os.getppid()):
            raise ZottaError("the run that asked for this is gone")
        images = as_batch(task.images(first, last), task.pixels)
        if index == 0:  # the first pass of a session allocates its memory
            subject.predict_prepared(images, adapt=False)
        ways = [(own, subject)]
        if plain and index % every == 0:
            ways.insert(index // every % 2, (other, plain))
            compared += last - first
        for meter, answering in ways:
            result = meter.predict(answering, images)
            if answering is subject:
                trace.add(task.correct(result, first, last), result, subject.status())
    return _found(task, subject, own, other.seconds / compared if compared else None, trace)


def _found(
    task: Task, subject: Subject, own: Meter, plain: float | None, trace: Trace
) -> dict[str, Any]:
    count = len(task.rows)
    seconds = own.seconds / count
    return {
        "images": count,
        "correct": "".join(trace.correct),
        "domain": task.domain,
        "batches": [last - first for first, last in task.batches],
        "adapted": "".join(trace.adapted),
        "drift": trace.drift,
        "distance": trace.distance,
        "passes": own.passes / count,
        "seconds": seconds,  # an image
        "plain_seconds": plain,
        "time_ratio": seconds / plain if plain else None,
        "peak": own.peak or None,
        "threads": task.subject.threads,
        "status": subject.status(),
        "versions": versions() | task.subject.versions(),
    }


def main() -> int:
    task = Task.from_json(sys.stdin.read())
    try:
        store(task, run(task))
    except (ZottaError, MemoryError, OSError) as error:
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        return 1
    return 0


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


if __name__ == "__main__":
    sys.exit(main())
