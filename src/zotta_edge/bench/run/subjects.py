"""What is measured: a method of the runtime on a model file, or a torch reference in its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from zotta_edge.bench.run.origin import Origin
from zotta_edge.bench.run.variants import FP32, PLAIN, PLAIN_FP32
from zotta_edge.format import Floats
from zotta_edge.runtime.adaptive import AdaptiveModel, Result
from zotta_edge.runtime.settings import Settings


class Subject(Protocol):
    @property
    def passes(self) -> float: ...

    def predict_prepared(self, batch: Floats, adapt: bool = True) -> Result: ...

    def status(self) -> dict[str, Any]: ...

    def reset(self) -> None: ...


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
