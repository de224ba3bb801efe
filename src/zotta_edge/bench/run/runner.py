"""Runs the conditions: several at a time, each in a process of its own or, if
they share one, one after another; each finished only once."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from zotta_edge.bench.run.conditions import Condition
from zotta_edge.bench.run.scratch import Scratch, domains_of
from zotta_edge.bench.run.subjects import Spec
from zotta_edge.bench.run.trial import LETTERS, InTurn, Task
from zotta_edge.errors import ZottaError

CONDITIONS = "conditions"
SCRATCH = "scratch"

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class Runner:
    """Where results go, and how many conditions run at a time."""

    output: Path
    conditions: Path  # folder of results, one file each
    jobs: int
    threads: int  # of each job
    spec: Callable[[Condition], Spec]  # how to open what a condition measures
    record: Mapping[str, Any]  # goes into every result
    shared: bool = False  # one process for all conditions, one after another
    _running: set["subprocess.Popen[str]"] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _here: InTurn = field(default_factory=InTurn)

    def result(self, condition: Condition) -> Path:
        return self.conditions / condition.file

    def is_done(self, condition: Condition) -> bool:
        return self.result(condition).exists()

    def todo(self, conditions: Sequence[Condition]) -> list[Condition]:
        return [condition for condition in conditions if not self.is_done(condition)]

    def run(
        self, conditions: Sequence[Condition], report: Callable[[Condition, str | None], None]
    ) -> list[str]:
        """Run the pending conditions; `report` is called after each, with its error if any."""
        left = self.todo(conditions)
        if self.shared:
            left = _by_method(left)
        scratch = Scratch(self.output / SCRATCH, self.threads, self._stopped)
        scratch.expect(left)
        errors: list[str] = []
        with ThreadPoolExecutor(1 if self.shared else self.jobs) as pool:
            try:
                futures = {
                    pool.submit(self._run_one, condition, scratch): condition for condition in left
                }
                for future in as_completed(futures):
                    error = future.result()
                    report(futures[future], error)
                    errors += [f"{futures[future].title}: {error}"] if error else []
            except BaseException:
                self._stop(pool)
                raise
        return errors

    def _run_one(self, condition: Condition, scratch: Scratch) -> str | None:
        """Measure a condition; returns the error if that failed."""
        if self._stopped.is_set():
            return "interrupted"
        arrays = [str(scratch.get(domain)) for domain in domains_of(condition)]
        try:
            return self._measure(self._task(condition, arrays))
        finally:
            scratch.release(condition)

    def _measure(self, task: Task) -> str | None:
        return self._in_turn(task) if self.shared else self._alone(task)

    def _in_turn(self, task: Task) -> str | None:
        try:
            self._here.run(replace(task, parent=0))
        except (ZottaError, MemoryError, OSError) as error:
            return " ".join(str(error).split()) or type(error).__name__
        return None

    def _alone(self, task: Task) -> str | None:
        command = [sys.executable, "-m", "zotta_edge.bench.run.trial"]
        own = os.environ | dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=own,
        )
        self._running.add(process)
        try:
            _, errors = process.communicate(json.dumps(asdict(task)))
        finally:
            self._running.discard(process)
        if process.returncode == 0:
            return None
        name = task.record["model"]["file"]
        lines = errors.replace(task.subject.model, name).strip().splitlines()
        return lines[-1] if lines else f"the process ended with {process.returncode}"

    def _stop(self, pool: ThreadPoolExecutor) -> None:
        self._stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(self._running):
            process.terminate()

    def _task(self, condition: Condition, arrays: Sequence[str]) -> Task:
        stream = condition.stream
        draws = [condition.draw.labels(name, severity) for name, severity in condition.shown]
        labels = [
            int(draws[domain][row]) for domain, row in zip(stream.domain, stream.row, strict=True)
        ]
        return Task(
            subject=self.spec(condition),
            pixels=condition.model.info.preprocessing,
            arrays=arrays,
            domain="".join(LETTERS[index] for index in stream.domain),
            rows=stream.row.tolist(),
            labels=labels,
            batches=[(part.start, part.stop) for part in stream.batches(condition.batch)],
            among=condition.draw.data.among,
            parent=os.getpid(),
            output=str(self.result(condition)),
            record={
                "condition": condition.identity,
                "model": condition.model.describe(),
                **self.record,
            },
        )


def _by_method(conditions: Sequence[Condition]) -> list[Condition]:
    """Seed by seed, those of one method side by side."""
    places = {key: place for place, key in enumerate(dict.fromkeys(map(_opened, conditions)))}
    return sorted(conditions, key=lambda own: (own.seed, places[_opened(own)]))


def _opened(condition: Condition) -> tuple[str, str]:
    return condition.model.name, condition.variant.name


def check_folder(folder: Path) -> None:
    """Refuse, before minutes of work, a folder that results cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ZottaError(f"cannot write to {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK):
        raise ZottaError(f"cannot write to {folder}: no permission")
