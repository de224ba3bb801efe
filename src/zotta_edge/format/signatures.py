"""What calibration learned of how single images betray their world, as a model file stores it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zotta_edge.format.packing import (
    Floats,
    coded,
    coded_bytes,
    decode,
    decode_bytes,
    encode,
    matrix,
)

MAPS = ("gains", "inward", "outward", "deltas")
UNITS = ("measure_mean", "measure_std")


@dataclass(frozen=True)
class Signatures:
    """Linear maps from an image's measures m and stem features s to what it needs.

    With q = [m, m m^T, 1] and u = [s, filter, q], in units of the source's spread: g = q gains,
    z = u inward, r = z outward, delta = z deltas.
    """

    filters: tuple[str, ...]  # whose log gain `gains` tells
    measure_mean: Floats  # [M], of source images
    measure_std: Floats  # [M]
    gains: Floats  # [Q, filters]
    inward: Floats  # [U, rank]
    outward: Floats  # [rank, D], features from the first chosen layer on
    deltas: Floats  # [rank, E]
    spread: float  # variance of g, summed over filters, among images of one kind
    energy: float  # mean |r|^2 that is predicted for source images
    images: int  # of the source that were degraded
    copies: int  # of each
    seconds: float

    @property
    def arrays(self) -> list[Floats]:
        return [getattr(self, name) for name in (*UNITS, *MAPS)]

    @property
    def stored_bytes(self) -> int:
        """In the file, before base64."""
        maps = (self.gains, self.inward, self.outward, self.deltas)
        units = self.measure_mean.nbytes + self.measure_std.nbytes
        return units + sum(coded_bytes(*each.shape) for each in maps)


def signatures_to_metadata(signatures: Signatures) -> dict[str, str]:
    plain = {key: value for key, value in vars(signatures).items() if key not in (*MAPS, *UNITS)}
    shapes = {name: getattr(signatures, name).shape for name in MAPS}
    maps = np.concatenate([coded(getattr(signatures, name)) for name in MAPS])
    return {
        "zotta.signatures": json.dumps(plain | {"shapes": shapes}, separators=(",", ":")),
        "zotta.units": encode(np.concatenate([getattr(signatures, name) for name in UNITS])),
        "zotta.maps": encode(maps, "i1"),
    }


def signatures_from_metadata(metadata: Mapping[str, str]) -> Signatures | None:
    """None for a file that was primed without."""
    if "zotta.signatures" not in metadata:
        return None
    plain = json.loads(metadata["zotta.signatures"])
    shapes = plain.pop("shapes")
    units = decode(metadata["zotta.units"])
    parts = np.split(units, 2)
    plain["filters"] = tuple(plain["filters"])
    arrays: dict[str, Any] = dict(zip(UNITS, parts, strict=True))
    found = Signatures(**plain, **arrays, **_maps(metadata["zotta.maps"], shapes))
    _check(found)
    return found


def _maps(text: str, shapes: Mapping[str, Any]) -> dict[str, Any]:
    sizes = [tuple(int(side) for side in shapes[name]) for name in MAPS]
    ends = np.cumsum([coded_bytes(*size) for size in sizes])
    stored = decode_bytes(text)
    if len(stored) != ends[-1]:
        raise ValueError(f"{len(stored)} bytes of signatures instead of {ends[-1]}")
    parts = np.split(stored, ends[:-1])
    return {
        name: matrix(part, size[1]) for name, part, size in zip(MAPS, parts, sizes, strict=True)
    }


def _check(s: Signatures) -> None:
    measures, rank = len(s.measure_mean), s.inward.shape[1]
    products = measures * (measures + 3) // 2 + 1
    fits = (
        s.gains.shape == (products, len(s.filters))
        and len(s.inward) >= products + len(s.filters)
        and len(s.outward) == len(s.deltas) == rank
        and len(s.measure_std) == measures
        and (s.measure_std > 0).all()
        and s.spread > 0
        and s.energy > 0
    )
    if not fits:
        raise ValueError("signatures of shapes that do not fit each other")
