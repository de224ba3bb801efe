"""f(theta): a batch whose stem has run, at any values of the chosen affines."""

from dataclasses import dataclass

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine, Outputs, Stem
from zotta_edge.runtime.zeroth.parameters import Parameters


@dataclass(frozen=True)
class Batch:
    engine: Engine
    parameters: Parameters
    stem: Stem

    @classmethod
    def of(cls, engine: Engine, parameters: Parameters, images: Floats) -> "Batch":
        return cls(engine, parameters, engine.stem(images))

    @property
    def batch(self) -> int:
        return self.stem.batch

    def __call__(self, theta: Floats) -> Outputs:
        at_source = theta is self.parameters.source  # what the graph has without being told
        return self.engine.cone(self.stem, {} if at_source else self.parameters.affines(theta))
