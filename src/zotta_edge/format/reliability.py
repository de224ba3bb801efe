"""How far the answers' certainty may be believed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from zotta_edge.format.layers import Layer


@dataclass(frozen=True)
class Reliability:
    """How far the model's certainty says that it is right, learned on degraded source images."""

    image: tuple[float, float]  # a, b: P(right) of an answer = logistic(a log-odds + b)
    stream: tuple[float, ...]  # w, b: of a whole stream = logistic(w s + b), s its summary
    error: float  # of a stream's estimate, RMS over kinds of degradation left out of the fit
    labelled: bool  # right by the labels of the source images; else: as on the clean image
    streams: int  # behind the fit


def reliability_to_metadata(known: Reliability) -> dict[str, str]:
    return {"zotta.reliability": json.dumps(asdict(known), separators=(",", ":"))}


def reliability_from_metadata(
    metadata: Mapping[str, str], layers: tuple[Layer, ...]
) -> Reliability | None:
    if "zotta.reliability" not in metadata:
        return None
    item = json.loads(metadata["zotta.reliability"])
    (slope, offset), stream = map(float, item["image"]), tuple(map(float, item["stream"]))
    known = Reliability(**(item | {"image": (slope, offset), "stream": stream}))
    if len(stream) != len(layers) + 3 or not np.isfinite([slope, offset, *stream]).all():
        raise ValueError(f"a reliability of {len(stream)} numbers")
    if not 0 <= known.error <= 1:
        raise ValueError(f"a reliability to {known.error}")
    return known
