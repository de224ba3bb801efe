"""Streams as the model will see them, made once and read by every method.

Each domain is one .npy of uint8 images at the model's size. A file is mapped for the moment of
reading a batch, so that the images of a stream never count as a method's memory.
"""

import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np

from zotta_edge.bench.data.datasets import CLEAN
from zotta_edge.bench.run.conditions import Condition, Draw
from zotta_edge.corruptions import corrupt, corrupt_stream
from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.format import Preprocessing
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.preprocessing import fit


@dataclass(frozen=True)
class Domain:
    """Images that were drawn, fitted to a model, and corrupted where the data is clean."""

    name: str
    severity: int
    draw: Draw
    pixels: Preprocessing

    @property
    def made(self) -> bool:
        return self.name != CLEAN and not self.draw.data.shifts

    @property
    def file(self) -> str:
        p, images = self.pixels, self.draw.data.images(self.name, self.severity)
        shape = (p.height, p.width, p.channels, p.resize, p.interpolation)
        text = f"{images.identity} {shape} {self.draw.count} {self.draw.rows}"
        key = sha256(text.encode()).hexdigest()[:12]
        severity = f"-{self.severity}" if self.name != CLEAN else ""
        return f"{self.name}{severity}-seed{self.draw.seed}-{key}.npy"

    @property
    def shape(self) -> tuple[int, ...]:
        images = self.draw.data.images(self.name, self.severity)
        return (len(self.draw.of(images)), self.pixels.height, self.pixels.width,
                self.pixels.channels)  # fmt: skip

    def clean(self) -> "Domain":
        return Domain(CLEAN, self.severity, self.draw, self.pixels)

    @property
    def files(self) -> list[str]:
        """Its own file, and the clean one that it is made from."""
        return [self.file, self.clean().file] if self.made else [self.file]


def domains_of(condition: Condition) -> list[Domain]:
    pixels = condition.model.info.preprocessing
    return [Domain(name, severity, condition.draw, pixels) for name, severity in condition.shown]


@dataclass
class Scratch:
    """A folder of domains; each is made when it is first needed and removed after its last use."""

    folder: Path
    workers: int
    stopped: threading.Event = field(default_factory=threading.Event)  # makes no more when set
    _uses: Counter[str] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _locks: defaultdict[str, threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock)
    )

    def expect(self, conditions: Iterable[Condition]) -> None:
        """Count how often each file will be used."""
        for condition in conditions:
            for domain in domains_of(condition):
                self._uses.update(domain.files)

    def get(self, domain: Domain) -> Path:
        path = self.folder / domain.file
        with self._locks[domain.file]:
            if not path.exists():
                self._make(domain, path)
        return path

    def sample(self, domain: Domain, rows: Sequence[int]) -> list[Image]:
        """A few images of a domain, without making all of it."""
        images = domain.draw.data.images(domain.name, domain.severity)
        drawn = domain.draw.of(images)
        fitted = {row: fit(images.read(int(drawn[row])), domain.pixels) for row in rows}
        if not domain.made:
            return list(fitted.values())
        seed = domain.draw.seed
        return [
            corrupt(image, domain.name, domain.severity, [seed, row])
            for row, image in fitted.items()
        ]

    def release(self, condition: Condition) -> None:
        for domain in domains_of(condition):
            for file in domain.files:
                with self._counting:
                    self._uses[file] -= 1
                    unused = self._uses[file] == 0
                if unused:
                    (self.folder / file).unlink(missing_ok=True)

    def _make(self, domain: Domain, path: Path) -> None:
        with replacing(path) as temporary:
            array = np.lib.format.open_memmap(
                temporary, mode="w+", dtype=np.uint8, shape=domain.shape
            )
            for row, image in enumerate(self._images(domain)):
                if self.stopped.is_set():
                    raise ZottaError("interrupted")
                array[row] = image
            array.flush()

    def _images(self, domain: Domain) -> Iterator[Image]:
        if domain.made:
            clean = np.load(self.get(domain.clean()), mmap_mode="r")
            yield from corrupt_stream(
                clean, domain.name, domain.severity, domain.draw.seed, self.workers
            )
            return
        images = domain.draw.data.images(domain.name, domain.severity)
        for index in domain.draw.of(images):
            yield fit(images.read(int(index)), domain.pixels)


def check_space(folder: Path, conditions: Iterable[Condition]) -> None:
    """Refuse a run whose largest stream does not fit on the disk."""
    largest = 0
    for condition in conditions:
        domains = domains_of(condition)
        count = len(domains) + any(domain.made for domain in domains)
        largest = max(largest, sum(int(np.prod(domain.shape)) for domain in domains[:1]) * count)
    free = shutil.disk_usage(folder).free
    if largest > free:
        raise ZottaError(
            f"a stream takes {largest / 1e9:.1f} GB in {folder}, which has {free / 1e9:.1f} GB "
            "left: fewer --images or --corruptions, or another --output"
        )
