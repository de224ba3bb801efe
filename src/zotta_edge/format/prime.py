"""How the features move with the chosen layers' shifts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zotta_edge.format.layers import Layer
from zotta_edge.format.packing import Floats, coded, coded_bytes, decode_bytes, encode, matrix

_MATRICES = ("features", "shifts")


@dataclass(frozen=True)
class Prime:
    """J = dv / dtheta of the chosen layers' shifts, as a product of two thin matrices."""

    features: Floats  # [D, rank], the channels of all layers from the first chosen one on
    shifts: Floats  # [d, rank]; J = features shifts^T
    layers: tuple[int, ...]  # whose shifts theta is
    images: int  # that J is a mean over
    perturbation: float  # c of the differences
    energy: float  # share of |J|^2 that the rank keeps
    mirrored: float  # share of source images that the model calls the same seen in a mirror
    seconds: float


def prime_to_metadata(prime: Prime) -> dict[str, str]:
    plain = {key: value for key, value in vars(prime).items() if key not in _MATRICES}
    both = np.concatenate([coded(prime.features), coded(prime.shifts)])
    return {
        "zotta.prime": json.dumps(plain, separators=(",", ":")),
        "zotta.jacobian": encode(both, "i1"),
    }


def prime_from_metadata(metadata: Mapping[str, str], layers: tuple[Layer, ...]) -> Prime | None:
    if "zotta.prime" not in metadata:
        return None
    plain = json.loads(metadata["zotta.prime"])
    chosen = tuple(plain.pop("layers"))
    if any(not 0 <= index < len(layers) for index in chosen):
        raise ValueError(f"primed layers {list(chosen)} of {len(layers)}")
    channels = sum(layer.channels for layer in layers[min(chosen) :])
    shifts = sum(layers[index].parameters for index in chosen) // 2
    stored = decode_bytes(metadata["zotta.jacobian"])
    rank, rest = divmod(len(stored), coded_bytes(channels, 1) + coded_bytes(shifts, 1))
    if rest or not rank:
        raise ValueError(f"{len(stored)} bytes of Jacobian for {channels} x {shifts}")
    left, right = np.split(stored, [coded_bytes(channels, rank)])
    return Prime(matrix(left, rank), matrix(right, rank), layers=chosen, **plain)
