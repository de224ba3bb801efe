"""Eight threads on one model: is what they saw what one after the other could have seen?

    python benchmarks/trust/concurrency.py --operations 400

Writers learn from images, readers only ask, and others pause, resume, reset, save and restore in
the middle. Every call is recorded with its begin, its end and a hash of its result. Then an order
is searched (Wing and Gong, 1993) that respects begin and end, and in which a model of the same file
that no other thread touches gives the same results, bit for bit. None: an update was torn or lost.
A call that came while learning was paused may be answered after it is resumed: not learned from.
"""

import argparse
import hashlib
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from study import Record, state_of, stream

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.methods.registry import METHODS

KINDS = ("learn", "ask", "state", "save", "restore", "reset", "pause", "resume")
SHARES = (0.4, 0.25, 0.15, 0.06, 0.05, 0.03, 0.03, 0.03)
THREADS = 8


@dataclass(frozen=True)
class Call:
    """One call of one thread, as it was seen from outside."""

    kind: str
    argument: int
    begin: int
    end: int
    result: str


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("concurrency")
    stream()
    for method in args.methods.split(","):
        with record.step(method), tempfile.TemporaryDirectory() as folder:
            try:
                model = AdaptiveModel.load(args.model, method=method, threads=1)
            except ZottaError as error:
                print(f"{method}: {error}")
                continue
            history = recorded(model, Path(folder), args.operations, args.seed)
            alone = AdaptiveModel.load(args.model, method=method, threads=1)
            found = explained(history, Specification(alone, Path(folder) / "alone"))
            record.require(found, f"{method}: no order explains what the threads saw")
            record.saw("calls explained", len(history) if found else 0)
    return record.close()


def act(model: AdaptiveModel, kind: str, argument: int, folder: Path) -> str:
    """Do one thing, and hash what comes back."""
    start = 16 * (argument % 60)
    match kind:
        case "learn" | "ask":
            images = stream()[start : start + 1 + argument % 16]
            return _hash(model.predict(images, adapt=kind == "learn").logits)
        case "state":
            return state_of(model)
        case "save":
            model.save_state(folder / f"{argument}.state")
        case "restore":
            model.load_state(folder / "first.state")
        case "reset":
            model.reset()
        case "pause":
            model.freeze()
        case "resume":
            model.unfreeze()
    return ""


def _hash(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def recorded(model: AdaptiveModel, folder: Path, count: int, seed: int) -> list[Call]:
    """What eight threads did and saw."""
    model.predict(stream()[:16])
    model.save_state(folder / "first.state")
    model.reset()
    history: list[Call] = []

    def work(thread: int) -> None:
        rng = np.random.default_rng([seed, thread])
        for number in range(count // THREADS):
            kind = str(rng.choice(KINDS, p=SHARES))
            argument = THREADS * number + thread
            begin = time.monotonic_ns()
            result = act(model, kind, argument, folder)
            history.append(Call(kind, argument, begin, time.monotonic_ns(), result))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(history, key=lambda call: call.begin)


class Specification:
    """The model that a single thread uses: where it can be after each call."""

    def __init__(self, model: AdaptiveModel, scratch: Path) -> None:
        self._model, self._scratch = model, scratch
        self._paused = False
        self._kept: dict[str, Path] = {}
        scratch.mkdir()
        model.predict(stream()[:16])
        model.save_state(scratch / "first.state")
        model.reset()

    def here(self) -> tuple[str, bool]:
        """The present state, kept so that `go` finds it again."""
        state = state_of(self._model)
        if state not in self._kept:
            self._kept[state] = self._scratch / f"at-{len(self._kept)}.kept"
            self._model.save_state(self._kept[state])
        return state, self._paused

    def go(self, place: tuple[str, bool]) -> None:
        self._model.load_state(self._kept[place[0]])
        self._pause(place[1])

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        self._model.freeze() if paused else self._model.unfreeze()

    def explains(self, call: Call) -> bool:
        """Whether the call, made now, gives what was seen; the model has then moved on."""
        if call.kind in ("pause", "resume"):
            self._pause(call.kind == "pause")
            return True
        return act(self._model, call.kind, call.argument, self._scratch) == call.result


def explained(history: list[Call], alone: Specification) -> bool:
    """Depth first over the calls that may come next: those begun before any other has ended."""
    tried: set[tuple[frozenset[int], tuple[str, bool]]] = set()
    path: list[tuple[tuple[str, bool], frozenset[int], list[tuple[int, Call]]]] = []
    done: frozenset[int] = frozenset()
    place = alone.here()
    choices = _next(history, done)
    while len(done) < len(history):
        if not choices:
            if not path:
                return False
            place, done, choices = path.pop()
            continue
        number, call = choices.pop(0)
        alone.go(place)
        if not alone.explains(call):
            continue
        after = alone.here()
        if (done | {number}, after) in tried:
            continue
        path.append((place, done, choices))
        place, done = after, done | {number}
        tried.add((done, place))
        choices = _next(history, done)
    return True


def _next(history: list[Call], done: frozenset[int]) -> list[tuple[int, Call]]:
    """Calls that no unfinished one precedes; those with a telling result first."""
    waiting = [index for index in range(len(history)) if index not in done]
    first_end = min((history[index].end for index in waiting), default=0)
    able = [index for index in waiting if history[index].begin <= first_end]
    able.sort(key=lambda index: (history[index].result == "", history[index].end))
    unlearned = [
        (index, replace(history[index], kind="ask"))
        for index in able
        if history[index].kind == "learn" and _paused(history, history[index])
    ]
    return [*((index, history[index]) for index in able), *unlearned]


def _paused(history: list[Call], call: Call) -> bool:
    """Whether learning may have been paused at some moment of the call."""
    resumes = [other for other in history if other.kind == "resume"]
    return any(
        pause.begin <= call.end
        and not any(pause.end < resume.begin and resume.end < call.begin for resume in resumes)
        for pause in history
        if pause.kind == "pause"
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operations", type=int, default=400, help="calls of a method")
    parser.add_argument("--methods", default=",".join(METHODS), help="default: all")
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
