"""The norms whose affines are inputs of the graph, and the layers they belong to."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zotta_edge.format.packing import Floats, decode, encode
from zotta_edge.tensor_layouts import LAYOUTS, Kind


@dataclass(frozen=True)
class Norm:
    """One normalization whose scale and shift are inputs of the graph."""

    name: str
    channels: int
    kind: Kind
    inserted: bool = False  # the source has no norm here: scale 1, shift 0

    @property
    def scale(self) -> str:
        return f"{self.name}.scale"

    @property
    def shift(self) -> str:
        return f"{self.name}.shift"

    @property
    def shape(self) -> tuple[int, ...]:
        """One affine for the whole batch; the first axis may also be the batch."""
        return LAYOUTS[self.kind].affine_shape(self.channels)

    @property
    def parameters(self) -> int:
        return 2 * self.channels


@dataclass(frozen=True)
class Layer:
    """A transformer block or a residual stage: its norms, and the tensor that leaves it."""

    name: str
    feature: str  # output of the graph: the pooled feature, [batch, channels]
    tensor: str  # the tensor inside the graph that `feature` is the mean of
    kind: Kind
    channels: int
    norms: tuple[Norm, ...]

    @property
    def parameters(self) -> int:
        return sum(norm.parameters for norm in self.norms)


def layer_to_item(layer: Layer) -> dict[str, Any]:
    """Earlier versions know no `inserted`: a file that does not need it stays readable to them."""
    item = asdict(layer)
    for norm in item["norms"]:
        if not norm["inserted"]:
            del norm["inserted"]
    return item


def layer_from_item(item: dict[str, Any]) -> Layer:
    return Layer(**(item | {"norms": tuple(Norm(**norm) for norm in item["norms"])}))


def affines_to_text(layers: tuple[Layer, ...], affines: Mapping[str, Floats]) -> str:
    return encode(np.concatenate([np.ravel(affines[name]) for name in _affine_names(layers)]))


def affines_from_text(layers: tuple[Layer, ...], text: str) -> dict[str, Floats]:
    flat = decode(text)
    norms = [norm for layer in layers for norm in layer.norms for _ in range(2)]
    ends = np.cumsum([norm.channels for norm in norms])
    if len(flat) != (ends[-1] if norms else 0):
        raise ValueError(f"{len(flat)} affine values for {len(norms) // 2} norms")
    parts = np.split(flat, ends[:-1])
    names = _affine_names(layers)
    return {
        name: part.reshape(norm.shape) for name, norm, part in zip(names, norms, parts, strict=True)
    }


def _affine_names(layers: tuple[Layer, ...]) -> list[str]:
    return [name for layer in layers for norm in layer.norms for name in (norm.scale, norm.shift)]
