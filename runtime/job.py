"""The main job: a stream of images goes through an adapting model, once, in order."""

import logging
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from zotta_edge.format import Floats
from zotta_edge.runtime.adaptive import AdaptiveModel, Result
from zotta_edge.runtime.events import Event
from zotta_edge.runtime.interrupt import interrupts
from zotta_edge.runtime.io.output_file import Keeper
from zotta_edge.runtime.io.predictions import Writer
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.io.sources import Sample
from zotta_edge.runtime.memory import with_peak
from zotta_edge.version import __version__

EVENTS = 1000  # kept of a stream, the latest


class Answering(Protocol):
    """What a meter can measure: a model, adapting or not."""

    @property
    def passes(self) -> float: ...

    def predict_prepared(self, batch: Floats) -> Result: ...


@dataclass
class Meter:
    """What one way of answering cost, and how often it was right."""

    seconds: float = 0.0
    passes: float = 0.0  # full-pass equivalents x images
    peak: int = 0  # bytes resident at most; 0 where the system does not tell
    correct: int = 0

    def predict(self, model: Answering, batch: Floats) -> Result:
        """Answer a prepared batch and count what it cost."""
        passes, started = model.passes, time.perf_counter()
        result, peak = with_peak(lambda: model.predict_prepared(batch))
        self.seconds += time.perf_counter() - started
        self.passes += model.passes - passes
        self.peak = max(self.peak, peak or 0)
        return result


@dataclass
class Tally:
    """A stream so far; `plain` is the same file without adaptation, in the same process."""

    images: int = 0
    scored: int = 0  # images whose label is known
    interrupted: bool = False
    adapted: Meter = field(default_factory=Meter)
    plain: Meter | None = None
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS))

    def note_event(self, event: Event) -> None:
        """Keep what is worth a line in a log, with the images answered before its batch."""
        if event.level >= logging.INFO:
            self.events.append({"images": self.images} | event.to_dict())

    def accuracy(self, meter: Meter | None) -> float | None:
        return meter.correct / self.scored if meter and self.scored else None

    def note(self) -> str:
        """Running accuracy, for the progress line."""
        ways = (("adapted", self.adapted), ("unadapted", self.plain))
        known = [(name, self.accuracy(meter)) for name, meter in ways]
        return "  ".join(
            f"{name} {100 * value:.1f} %" for name, value in known if value is not None
        )


def adapt_stream(
    model: AdaptiveModel,
    batches: Iterable[Sequence[Sample]],
    *,
    labels: Mapping[str, int] | None = None,
    plain: AdaptiveModel | None = None,
    write: Writer = lambda names, probabilities, adapted: None,
    keep: Keeper = lambda names, outputs: None,
    progress: Callable[[Tally, int], None] = lambda tally, count: None,
) -> Tally:
    """Predict every batch as it comes; labels are for scoring only. Ctrl-C ends the stream early.

    Whichever of the two answers first finds cold caches, so they take turns at being first.
    """
    tally = Tally(plain=Meter() if plain else None)
    with interrupts() as asked, model.events.listening(tally.note_event):
        for index, batch in enumerate(batches):
            ways = [(tally.adapted, model)]
            if plain and tally.plain:
                ways.insert(index % 2, (tally.plain, plain))
            images = as_batch([sample.image for sample in batch], model.info.preprocessing)
            names = [sample.name for sample in batch]
            for meter, way in ways:
                result = meter.predict(way, images)
                meter.correct += _right(result, names, labels or {})
                if way is model:
                    write(names, result.probabilities, result.adapted)
                    keep(names, result.outputs)
            tally.images += len(batch)
            tally.scored += sum(name in labels for name in names) if labels else 0
            progress(tally, len(batch))
            if asked.is_set():
                tally.interrupted = True
                break
    return tally


def report(model: AdaptiveModel, path: Path, tally: Tally) -> dict[str, Any]:
    """`report.json`: what a stream gave and what it cost; its keys are stable."""
    status = model.status()
    adapted, plain = tally.adapted, tally.plain
    return {
        "images": tally.images,
        "scored": tally.scored,
        "interrupted": tally.interrupted,
        "accuracy": {"adapted": tally.accuracy(adapted), "unadapted": tally.accuracy(plain)},
        "estimated_accuracy": status.get("accuracy"),
        "holds": status.get("holds", 0),
        "passes": _ratio(adapted.passes, tally.images),
        "seconds": {"adapted": adapted.seconds, "unadapted": plain.seconds if plain else None},
        "time_ratio": _ratio(adapted.seconds, plain.seconds if plain else 0),
        "memory": {"adapted": adapted.peak or None, "unadapted": (plain and plain.peak) or None},
        "memory_ratio": _ratio(adapted.peak, plain.peak if plain else 0),
        "steps": status.get("steps", 0),
        "drift": status.get("drift"),
        "filter": status.get("filter"),
        "guard": status.get("guard", {}),
        "phase": status.get("phase"),
        "distance": status.get("distance"),
        "layers": status.get("layers", []),
        "events": list(tally.events),
        "settings": model.settings.to_dict(),
        "versions": versions(),
        "seed": model.settings.seed,
        "model": {
            "file": path.name,
            "sha256": model.fingerprint,
            "precision": model.info.recipe.precision,
        },
    }


def versions() -> dict[str, str]:
    """What a result depends on besides the model and the stream."""
    known = {"zotta-edge": __version__, "python": platform.python_version()}
    for package in ("numpy", "onnxruntime", "opencv-python-headless"):
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "unknown"
    return known | {"machine": f"{platform.machine()} {platform.processor()}".strip()}


def _right(result: Result, names: Sequence[str], labels: Mapping[str, int]) -> int:
    answers = zip(result.labels, names, strict=True)
    return sum(int(label) == labels[name] for label, name in answers if name in labels)


def _ratio(a: float, b: float) -> float | None:
    return a / b if a and b else None
