"""The grid: model x scenario x stream x method x seed, every cell of it checked before it runs."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zotta_edge.bench.data.datasets import CLEAN, Dataset, Images, Numbers, check_classes
from zotta_edge.bench.data.scenarios import Stream, batch_size, severities, streams
from zotta_edge.bench.run.origin import Origin
from zotta_edge.bench.run.variants import Variant
from zotta_edge.errors import ZottaError
from zotta_edge.files import sha256
from zotta_edge.format import ModelInfo
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.version import __version__


@dataclass(frozen=True)
class Model:
    name: str
    path: Path
    fingerprint: str
    info: ModelInfo

    def describe(self) -> dict[str, Any]:
        """What results say about the model."""
        calibration = self.info.calibration
        return {
            "file": self.path.name,
            "sha256": self.fingerprint,
            "precision": self.info.recipe.precision,
            "layers": [layer.name for layer in self.info.layers],
            "chosen": list(self.info.chosen),
            "purity": list(calibration.purity) if calibration else [],
        }

    @classmethod
    def open(cls, path: Path) -> "Model":
        if not path.is_file():
            raise ZottaError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
        return cls(path.stem, path, sha256(path), read_info(path))


@dataclass(frozen=True)
class Request:
    """What to compare on what: the flags of `zotta-edge bench`."""

    models: tuple[Model, ...]
    data: Dataset
    variants: tuple[Variant, ...]
    corruptions: tuple[str, ...]
    severities: tuple[int, ...] = (5,)
    scenarios: tuple[str, ...] = ("reset",)
    batches: tuple[int, ...] = (64,)
    seeds: tuple[int, ...] = (0,)
    images: int = 500  # of each corruption
    rows: tuple[int, int | None] = (0, None)  # of the data that may be drawn
    origin: Origin | None = None  # of torch references


@dataclass(frozen=True)
class Draw:
    """The images that a seed takes from a domain, in the order in which they arrive."""

    data: Dataset
    count: int
    rows: tuple[int, int | None]
    seed: int

    def of(self, images: Images) -> Numbers:
        """Indices; the same for every domain of the same length."""
        allowed = np.arange(len(images), dtype=np.intp)[slice(*self.rows)]
        return np.random.default_rng([self.seed, 0]).permutation(allowed)[: self.count]

    def labels(self, domain: str, severity: int) -> Numbers:
        images = self.data.images(domain, severity)
        return images.labels[self.of(images)]


@dataclass(frozen=True)
class Condition:
    """One cell of the grid: one method on one stream."""

    model: Model
    variant: Variant
    scenario: str
    severity: int
    batch: int
    stream: Stream
    draw: Draw
    origin: Origin | None = None

    @property
    def seed(self) -> int:
        return self.draw.seed

    @property
    def shown(self) -> list[tuple[str, int]]:
        """Corruption and severity of each of the stream's domains."""
        return self.stream.shown(self.severity)

    @property
    def title(self) -> str:
        return (
            f"{self.model.name} {self.variant.name} {self.scenario} {self.stream.name} "
            f"severity {self.severity} batch {self.batch} seed {self.seed}"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that affect the result; plain inference has none."""
        return {} if self.variant.is_plain else self.variant.settings(self.seed).to_dict()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the result depends on."""
        data = self.draw.data
        several = bool(self.stream.severities)
        shown = {
            f"{name} {severity}" if several else name: data.images(name, severity).identity
            for name, severity in self.shown
        }
        return {
            "model": self.model.name,
            "fingerprint": self.model.fingerprint,
            "variant": self.variant.name,
            "method": self.variant.method,
            "settings": self.settings,
            "scenario": self.scenario,
            "stream": self.stream.name,
            "corruptions": list(self.stream.domains),
            "severity": self.severity,
            "batch_size": self.batch,
            "seed": self.seed,
            "images": self.draw.count,
            "rows": list(self.draw.rows),
            "data": data.name,
            "shown": shown,
            "version": __version__,
        } | ({"origin": self.origin.fingerprint} if self.origin else {})

    @property
    def file(self) -> str:
        """The name of its result: readable, and different for different identities."""
        text = json.dumps(self.identity | {"data": ""}, sort_keys=True)
        parts = (self.model.name, self.variant.name, self.scenario, self.stream.name)
        readable = "-".join(parts).replace("/", "_").replace(" ", "_")
        return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def grid(request: Request) -> list[Condition]:
    """Every condition, those that share a stream side by side."""
    return list(_grid(request))


def _grid(request: Request) -> Iterator[Condition]:
    for seed, scenario, severity in product(request.seeds, request.scenarios, request.severities):
        draw = Draw(request.data, request.images, request.rows, seed)
        labels = partial(draw.labels, severity=severity)
        own = streams(scenario, request.corruptions, labels, seed, severity)
        sizes = dict.fromkeys(batch_size(scenario, size) for size in request.batches)
        for cell in product(request.models, own, sizes, request.variants):
            model, stream, size, variant = cell
            origin = request.origin if variant.is_reference else None
            yield Condition(model, variant, scenario, severity, size, stream, draw, origin)


def check_data(request: Request) -> None:
    """Refuse data that does not fit the request or the models."""
    for domain, severity in needed_domains(request):
        if request.data.shifts and domain not in request.data.shifts:
            raise ZottaError(
                f"{request.data.name} has no {domain}: it holds {', '.join(request.data.shifts)}"
            )
        images = request.data.images(domain, severity)
        left = len(range(*slice(*request.rows).indices(len(images))))
        if left == 0:
            raise ZottaError(f"{request.data.name} has no image in these --rows of {len(images)}")
        for model in request.models:
            check_classes(images, model.info.classes, request.data.name)


def needed_domains(request: Request) -> list[tuple[str, int]]:
    needed = [
        (name, shown)
        for scenario in request.scenarios
        for name in ([CLEAN] if scenario == "clean" else request.corruptions)
        for asked in request.severities
        for shown in severities(scenario, asked)
    ]
    return list(dict.fromkeys(needed))
