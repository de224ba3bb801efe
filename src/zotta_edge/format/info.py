"""All that an adaptable model file says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from zotta_edge.format.calibration import Calibration
from zotta_edge.format.layers import Layer, Norm
from zotta_edge.format.moments import SourceMoments
from zotta_edge.format.packing import Floats
from zotta_edge.format.preprocessing import Preprocessing, Trial
from zotta_edge.format.prime import Prime
from zotta_edge.format.reliability import Reliability
from zotta_edge.format.signatures import Signatures

IMAGE = "image"  # the input
LOGITS = "logits"  # the output; features follow it
EMBEDDING = "embedding"  # what the classifier head reads, [batch, D]
Precision = Literal["int4", "int8", "fp8", "fp32"]  # int4: only as it came


@dataclass(frozen=True)
class Recipe:
    """How the weights and activations were quantized, and for which machine."""

    precision: Precision
    scheme: str  # one line for a person: "dynamic per-channel S8, 7-bit weights"
    target: str  # avx2, vnni, arm64
    machine: str  # CPU on which the checks below were made


@dataclass(frozen=True)
class ModelInfo:
    """All that an adaptable model file says about itself."""

    preprocessing: Preprocessing
    layers: tuple[Layer, ...]
    recipe: Recipe
    affines: Mapping[str, Floats]  # input name -> source value, in its declared shape
    classes: int
    checks: Mapping[str, float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    calibration: Calibration | None = None
    prime: Prime | None = None
    trial: Trial | None = None
    moments: SourceMoments | None = None
    signatures: Signatures | None = None
    reliability: Reliability | None = None
    # Of a network without class scores: its own outputs, and their axes behind the batch's. Its
    # `classes` is 1.
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[str, ...]:
        """The outputs of the graph that are for the user."""
        return tuple(self.outputs) or (LOGITS,)

    @property
    def norms(self) -> tuple[Norm, ...]:
        return tuple(norm for layer in self.layers for norm in layer.norms)

    @property
    def chosen(self) -> tuple[int, ...]:
        return self.calibration.chosen if self.calibration else ()

    def with_calibration(self, calibration: Calibration | None) -> "ModelInfo":
        """A prime belongs to the layers that were chosen, and goes with them, as all else does."""
        bare = replace(self, calibration=calibration, prime=None, signatures=None, moments=None)
        return replace(bare, reliability=None)
