"""What is measured: a method of the runtime on a model file, or a torch reference in its place."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from zotta_edge.bench.run.variants import FP32, PLAIN, PLAIN_FP32
from zotta_edge.files import sha256
from zotta_edge.format import Floats
from zotta_edge.runtime.adaptive import AdaptiveModel, Result
from zotta_edge.runtime.settings import Settings


class Subject(Protocol):
    @property
    def passes(self) -> float: ...

    def predict_prepared(self, batch: Floats, adapt: bool = True) -> Result: ...

    def status(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Origin:
    """Where torch references come from."""

    checkpoint: str
    source: str  # clean images, as calibration takes them
    fingerprint: str  # of both

    @classmethod
    def of(cls, checkpoint: Path, source: str) -> "Origin":
        where = Path(source)
        files = sorted(where.rglob("*")) if where.is_dir() else []
        listing = [f"{file.name} {file.stat().st_size}" for file in files if file.is_file()]
        images = repr(listing) if listing else sha256(where)
        both = f"{sha256(checkpoint)} {images}"
        return cls(str(checkpoint), source, hashlib.sha256(both.encode()).hexdigest())


@dataclass(frozen=True)
class Spec:
    """All that it takes to open one, in words that travel between processes."""

    model: str  # file
    method: str
    settings: Mapping[str, Any]
    threads: int
    origin: Origin | None = None

    def versions(self) -> dict[str, str]:
        """What its results depend on beside the runtime."""
        return {"torch": version("torch")} if self.method.startswith(FP32) else {}

    def open(self) -> tuple[Subject, Subject | None]:
        """The method, and plain inference in the same process to compare its time with."""
        if self.method.startswith(FP32):
            from zotta_edge.bench.run.fp32 import Fp32

            assert self.origin
            name, seed = self.method.removeprefix(FP32), int(self.settings["seed"])
            reference = Fp32.build(self.origin, Path(self.model), name, seed, self.threads)
            return reference, None if self.method == PLAIN_FP32 else reference.unadapted()
        settings = Settings().replace(self.settings)
        model = AdaptiveModel.load(self.model, settings, self.method, threads=self.threads)
        return model, None if self.method == PLAIN else model.unadapted()
