"""How a network wants its images, and how that was found."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

Interpolation = Literal["bicubic", "bilinear", "area"]
Layout = Literal["NCHW", "NHWC"]
Order = Literal["RGB", "BGR"]

_CERTAIN = 0.8  # share of resampled images that must agree on a preprocessing


@dataclass(frozen=True)
class Preprocessing:
    """From an RGB uint8 image to the network's input: resize, centre crop, (x / 255 - mean) / std.

    An image that already has the input's size is neither resized nor cropped. `mean` and `std` are
    in the order of the network's channels.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int | None = None  # shorter side before the crop; None: straight to height x width
    interpolation: Interpolation = "bilinear"
    layout: Layout = "NCHW"
    assumed: bool = False  # nobody said so, and no trial could tell
    order: Order = "RGB"  # of the network's channels

    @property
    def channels(self) -> int:
        return len(self.mean)  # 1: a grey model


@dataclass(frozen=True)
class Tried:
    """What a network made of images that were prepared in one way."""

    name: str  # "imagenet", "half BGR"
    images: int
    information: float  # of the answers about the images, in nats
    accuracy: float | None  # where labels are known


@dataclass(frozen=True)
class Trial:
    """How the preprocessing was found, where nobody gave it."""

    tried: tuple[Tried, ...]  # the chosen one first
    certainty: float  # share of resampled images on which the first is better than the second

    @property
    def certain(self) -> bool:
        return self.certainty >= _CERTAIN


def preprocessing_to_item(p: Preprocessing) -> dict[str, Any]:
    """Earlier versions know no `order`: a file that does not need it stays readable to them."""
    item = asdict(p)
    if p.order == "RGB":
        del item["order"]
    return item


def preprocessing_from_item(item: dict[str, Any]) -> Preprocessing:
    found = Preprocessing(**(item | {key: tuple(item[key]) for key in ("mean", "std")}))
    if not np.isfinite([found.mean, found.std]).all() or not min(found.std) > 0:
        raise ValueError(f"a mean of {found.mean}, a standard deviation of {found.std}")
    kinds = (found.layout, Layout), (found.interpolation, Interpolation), (found.order, Order)
    if any(value not in get_args(known) for value, known in kinds):
        raise ValueError(f"one of {[value for value, _ in kinds]}")
    return found


def trial_from_item(item: dict[str, Any]) -> Trial:
    return Trial(tuple(Tried(**each) for each in item["tried"]), float(item["certainty"]))
