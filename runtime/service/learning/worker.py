"""The one thread that changes the model, and what it says afterwards."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from zotta_edge.format import Floats
from zotta_edge.runtime.adaptive import AdaptiveModel, Result
from zotta_edge.runtime.zeroth.parameters import Parameters

T = TypeVar("T")


class Writer:
    """Runs jobs one after the other; whoever changes the model does it here.

    Its thread has the priority of the others: with a lower one, a busy service never adapts.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self.on_done: Callable[[], None] = lambda: None  # called in the writer's thread
        # A daemon: an update that takes longer than the shutdown may must not hold the process.
        self.thread = threading.Thread(target=self._run, name="zotta-writer", daemon=True)
        self.thread.start()

    @property
    def busy(self) -> bool:
        return self._last is not None and not self._last.done()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        job: Future[T] = Future()
        self._last = job
        self._jobs.put((job, work))
        return job

    def _run(self) -> None:
        while True:
            job, work = self._jobs.get()
            if not job.set_running_or_notify_cancel():
                continue
            try:
                job.set_result(work())
            except BaseException as error:
                job.set_exception(error)
            self.on_done()


@dataclass(frozen=True)
class Report:
    """The model as it was after a change, for everyone who only looks."""

    status: Mapping[str, Any]
    distances: Mapping[int, float]  # layer -> |theta_l - theta_l^S| / |theta_l^S|
    moment: int  # later reports have a higher one

    @classmethod
    def of(cls, model: AdaptiveModel) -> "Report":
        status = model.status()
        distances = _distances(model, status.get("layers", ()))
        return cls(status, distances, time.monotonic_ns())


def _distances(model: AdaptiveModel, chosen: Any) -> dict[int, float]:
    arrays = model.arrays()
    theta = next((arrays[name] for name in arrays if name.endswith(".theta")), None)
    if theta is None:
        return {}  # the method does not move theta
    source = Parameters(model.info, chosen).source
    if theta.shape != source.shape:
        return {}
    ends = np.cumsum([model.info.layers[index].parameters for index in chosen])[:-1]
    parts = zip(chosen, np.split(theta, ends), np.split(source, ends), strict=True)
    return {
        index: float(np.linalg.norm(now - then)) / max(float(np.linalg.norm(then)), 1e-12)
        for index, now, then in parts
    }


@dataclass(frozen=True)
class Learned:
    """The outcome of a lesson."""

    result: Result  # the answers to all of its images
    rest: list[Floats]  # images beyond the last full batch, answered but not learned from
    report: Report
    seconds: float
    batches: int
    adapted: int  # batches that changed the model, or tried to


def learn(
    model: AdaptiveModel, images: list[Floats], size: int, hurried: Callable[[], bool]
) -> Learned:
    """Adapt to as many full batches as there are, answer what is left with the outcome."""
    started = time.perf_counter()
    results, at = [], 0
    while at + size <= len(images) and not hurried():
        results.append(model.predict_prepared(np.stack(images[at : at + size])))
        at += size
    seconds = time.perf_counter() - started
    if rest := images[at:]:
        results.append(model.predict_prepared(np.stack(rest), adapt=False))
    adapted = sum(one.adapted for one in results)
    return Learned(joined(results), rest, Report.of(model), seconds, at // size, adapted)


def read(model: AdaptiveModel, images: Floats, size: int) -> Result:
    """Answer with the model as it is, a few images at a time: memory stays bounded."""
    parts = [images[at : at + size] for at in range(0, len(images), size)]
    return joined([model.predict_prepared(part, adapt=False) for part in parts])


def joined(results: list[Result]) -> Result:
    """Several batches' answers as one."""
    if len(results) == 1:
        return results[0]
    return Result(
        np.concatenate([one.labels for one in results]),
        np.concatenate([one.probabilities for one in results]),
        np.concatenate([one.logits for one in results]),
        any(one.adapted for one in results),
        results[-1].drift,
    )


def part(result: Result, start: int, end: int) -> Result:
    """The answers to some of a batch's images."""
    return Result(
        result.labels[start:end],
        result.probabilities[start:end],
        result.logits[start:end],
        result.adapted,
        result.drift,
    )
