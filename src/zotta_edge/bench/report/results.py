"""The files a run leaves behind, read back: one outcome a condition, summaries of many."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zotta_edge.bench.report.gain import Curve, half_gain
from zotta_edge.bench.run.trial import LETTERS
from zotta_edge.bench.run.variants import FP32, PLAIN, PLAIN_FP32
from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing

Flags = NDArray[np.int8]
_PARTS = ("condition", "correct", "domain", "images", "adapted", "batches", "passes", "seconds")


class Protocol(NamedTuple):
    """Results under one protocol may be compared with each other."""

    model: str
    scenario: str
    severity: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.scenario}, severity {self.severity}, batch {self.batch_size}"
            if self.scenario != "clean"
            else f"{self.model}, clean, batch {self.batch_size}"
        )


@dataclass(frozen=True)
class Outcome:
    """One finished condition."""

    record: Mapping[str, Any]

    @property
    def condition(self) -> Mapping[str, Any]:
        own: Mapping[str, Any] = self.record["condition"]
        return own

    @property
    def protocol(self) -> Protocol:
        return Protocol(*(self.condition[name] for name in Protocol._fields))

    @property
    def variant(self) -> str:
        return str(self.condition["variant"])

    @property
    def method(self) -> str:
        return str(self.condition["method"])

    @property
    def stream(self) -> tuple[str, int]:
        """What the methods are compared on."""
        return self.condition["stream"], self.condition["seed"]

    @cached_property
    def correct(self) -> Flags:
        return np.frombuffer(self.record["correct"].encode(), np.uint8).astype(np.int8) - ord("0")

    @property
    def updates(self) -> int:
        return int(self.record["adapted"].count("1"))

    def accuracies(self) -> dict[str, float]:
        """In percent, by corruption; its severities together."""
        return {name: 100 * float(self.correct[own].mean()) for name, own in self.places().items()}

    def places(self) -> dict[str, NDArray[np.bool_]]:
        """Which images of the stream are in each corruption."""
        letters = np.array(list(self.record["domain"]))
        names = dict(zip(LETTERS, self.condition["corruptions"], strict=False))
        return {
            name: np.isin(letters, [letter for letter, other in names.items() if other == name])
            for name in dict.fromkeys(names.values())
        }


def read_outcomes(files: Iterable[Path]) -> list[Outcome]:
    return [Outcome(_read(file)) for file in files]


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        missing = [name for name in _PARTS if name not in content]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ZottaError(f"{file} is damaged: delete it and run again ({error})") from error
    if missing:
        raise ZottaError(f"{file} is damaged: delete it and run again (no {missing[0]})")
    return content


@dataclass(frozen=True)
class Summary:
    """One method under one protocol, over all streams and seeds."""

    protocol: Protocol
    variant: str
    outcomes: tuple[Outcome, ...]
    plain: tuple[Outcome, ...]  # of plain inference on the same streams

    @property
    def is_plain(self) -> bool:
        return self.outcomes[0].method in (PLAIN, PLAIN_FP32)

    @cached_property
    def by_seed(self) -> dict[int, dict[str, float]]:
        return _by_seed(self.outcomes)

    @property
    def corruptions(self) -> list[str]:
        return list(dict.fromkeys(name for own in self.by_seed.values() for name in own))

    def accuracy(self, corruption: str) -> list[float]:
        """One value a seed."""
        return [own[corruption] for own in self.by_seed.values() if corruption in own]

    @property
    def mean(self) -> list[float]:
        return [float(np.mean(list(own.values()))) for own in self.by_seed.values()]

    @property
    def worst(self) -> list[float]:
        return [min(own.values()) for own in self.by_seed.values()]

    @cached_property
    def gains(self) -> dict[str, float]:
        """Points above plain inference on the same images, by corruption, mean over seeds."""
        plain = _by_seed(self.plain)
        seeds = [seed for seed in self.by_seed if seed in plain]
        return {
            name: float(np.mean([self.by_seed[s][name] - plain[s][name] for s in seeds]))
            for name in self.corruptions
            if all(name in plain[s] and name in self.by_seed[s] for s in seeds) and seeds
        }

    @property
    def gain(self) -> list[float]:
        """Of the mean; one value a seed."""
        plain = _by_seed(self.plain)
        return [
            float(np.mean([own[name] - plain[seed][name] for name in own]))
            for seed, own in self.by_seed.items()
            if own.keys() <= plain.get(seed, {}).keys()
        ]

    @property
    def passes(self) -> float:
        return float(np.mean([outcome.record["passes"] for outcome in self.outcomes]))

    @property
    def updates(self) -> float:
        """Batches of a stream that changed the model."""
        return float(np.mean([outcome.updates for outcome in self.outcomes]))

    @property
    def time_ratio(self) -> float | None:
        return _median(outcome.record["time_ratio"] for outcome in self.outcomes)

    @property
    def memory_ratio(self) -> float | None:
        own = _median(outcome.record["peak"] for outcome in self.outcomes)
        plain = _median(outcome.record["peak"] for outcome in self.plain)
        return own / plain if own and plain else None

    @cached_property
    def half_gain(self) -> int | None:
        return half_gain(self.differences())

    def differences(self) -> list[Curve]:
        """For each stream: +1 where the method alone was right, -1 where plain inference alone."""
        plain = {outcome.stream: outcome.correct for outcome in self.plain}
        pairs = [
            (outcome.correct, plain[outcome.stream])
            for outcome in self.outcomes
            if outcome.stream in plain
        ]
        return [own.astype(float) - other for own, other in pairs]

    def row(self) -> dict[str, Any]:
        """For machines."""
        return {
            **self.protocol._asdict(),
            "variant": self.variant,
            "seeds": list(self.by_seed),
            "images": sum(outcome.record["images"] for outcome in self.outcomes),
            "accuracy": {name: self.accuracy(name) for name in self.corruptions},
            "mean": self.mean,
            "worst": self.worst,
            "gain": self.gain,
            "gains": self.gains,
            "passes": self.passes,
            "updates": self.updates,
            "time_ratio": self.time_ratio,
            "memory_ratio": self.memory_ratio,
            "half_gain": self.half_gain,
        }


def summarize(outcomes: Sequence[Outcome]) -> dict[Protocol, list[Summary]]:
    """By protocol; methods in the order in which they were asked for."""
    groups: dict[Protocol, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.protocol, {}).setdefault(outcome.variant, []).append(outcome)
    return {
        protocol: [
            Summary(protocol, name, tuple(own), _plain(own[0], variants.values()))
            for name, own in variants.items()
        ]
        for protocol, variants in groups.items()
    }


def _plain(outcome: Outcome, variants: Iterable[Sequence[Outcome]]) -> tuple[Outcome, ...]:
    """What it is compared with: plain inference of the same file, or of the torch module."""
    wanted = PLAIN_FP32 if outcome.method.startswith(FP32) else PLAIN
    return next((tuple(own) for own in variants if own[0].method == wanted), ())


def _by_seed(outcomes: Iterable[Outcome]) -> dict[int, dict[str, float]]:
    seeds: dict[int, dict[str, float]] = {}
    for outcome in outcomes:
        seeds.setdefault(outcome.condition["seed"], {}).update(outcome.accuracies())
    return seeds


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


COLUMNS = (
    "model", "precision", "variant", "method", "scenario", "stream", "corruption", "severity",
    "batch_size", "seed", "images", "accuracy", "accuracy_none", "gain", "passes", "updates",
    "time_ratio", "peak_bytes", "fingerprint", "cpu", "versions", "command",
)  # fmt: skip


def write_csv(path: Path, summaries: Mapping[Protocol, Sequence[Summary]]) -> None:
    """One line for each method, stream, corruption and seed, with all that it depends on."""
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream,
    ):
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for summary in (s for own in summaries.values() for s in own):
            plain = {outcome.stream: outcome.accuracies() for outcome in summary.plain}
            for outcome in summary.outcomes:
                writer.writerows(_lines(outcome, plain.get(outcome.stream, {})))


def _lines(outcome: Outcome, plain: Mapping[str, float]) -> Iterable[dict[str, Any]]:
    record, condition = outcome.record, outcome.condition
    shared = {name: condition[name] for name in COLUMNS if name in condition} | {
        "precision": record["model"]["precision"],
        "passes": round(record["passes"], 4),
        "updates": outcome.updates,
        "time_ratio": record["time_ratio"],
        "peak_bytes": record["peak"],
        "cpu": record["cpu"],
        "versions": " ".join(f"{name}={value}" for name, value in record["versions"].items()),
        "command": record["command"],
    }
    counts = {name: int(own.sum()) for name, own in outcome.places().items()}
    for corruption, accuracy in outcome.accuracies().items():
        without = plain.get(corruption)
        yield shared | {
            "corruption": corruption,
            "images": counts[corruption],
            "accuracy": round(accuracy, 4),
            "accuracy_none": None if without is None else round(without, 4),
            "gain": None if without is None else round(accuracy - without, 4),
        }


def write_json(
    path: Path, summaries: Mapping[Protocol, Sequence[Summary]], about: Mapping[str, Any]
) -> None:
    """Summaries and every condition behind them."""
    content = dict(about) | {
        "summaries": [summary.row() for own in summaries.values() for summary in own],
        "conditions": [
            o.record for own in summaries.values() for summary in own for o in summary.outcomes
        ],
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
