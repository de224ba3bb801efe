"""The thread that changes the model, and what it does there."""

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
    """A thread that runs jobs in order; every change of the model is such a job.

    The thread has normal priority: with a lower one, a busy service would never adapt.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self.on_done: Callable[[], None] = lambda: None  # called in the writer's thread
        # A daemon: a slow update must not keep the process from exiting.
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
    """The model's state after a change, for readers in other threads."""

    status: Mapping[str, Any]
    distances: Mapping[int, float]  # layer -> |theta_l - theta_l^S| / |theta_l^S|
    moment: int  # of the report; later ones have higher values

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
    """What came out of learning from some images."""

    result: Result  # the answers to all of the images
    rest: list[Floats]  # images beyond the last full batch: answered, not learned from
    report: Report
    seconds: float
    batches: int
    adapted: int  # batches that changed the model, or tried to


def learn(
    model: AdaptiveModel, images: list[Floats], size: int, stop: Callable[[], bool]
) -> Learned:
    """Adapt to every full batch in `images`, then answer the rest with the adapted model."""
    started = time.perf_counter()
    results, at = [], 0
    while at + size <= len(images) and not stop():
        results.append(model.predict_prepared(np.stack(images[at : at + size])))
        at += size
    seconds = time.perf_counter() - started
    if rest := images[at:]:
        results.append(model.predict_prepared(np.stack(rest), adapt=False))
    adapted = sum(result.adapted for result in results)
    return Learned(joined(results), rest, Report.of(model), seconds, at // size, adapted)


def read(model: AdaptiveModel, images: Floats, size: int) -> Result:
    """Answer without adapting, `size` images at a time so that memory stays bounded."""
    parts = [images[at : at + size] for at in range(0, len(images), size)]
    return joined([model.predict_prepared(part, adapt=False) for part in parts])


def joined(results: list[Result]) -> Result:
    """The answers to several batches as a single result."""
    if len(results) == 1:
        return results[0]
    return Result(
        np.concatenate([result.labels for result in results]),
        np.concatenate([result.probabilities for result in results]),
        np.concatenate([result.logits for result in results]),
        any(result.adapted for result in results),
        results[-1].drift,
        {
            name: np.concatenate([result.outputs[name] for result in results])
            for name in results[0].outputs
        },
    )


def part(result: Result, start: int, end: int) -> Result:
    """The answers to images `start` to `end` of a batch."""
    return Result(
        result.labels[start:end],
        result.probabilities[start:end],
        result.logits[start:end],
        result.adapted,
        result.drift,
        {name: values[start:end] for name, values in result.outputs.items()},
    )
