"""The images of --data, for the trial of preprocessings, the checks, and recipes that need them."""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from zotta_edge.errors import ZottaError
from zotta_edge.export.sources.classifier import Say
from zotta_edge.format import Preprocessing
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.labels import Labels
from zotta_edge.runtime.io.preprocessing import fit
from zotta_edge.runtime.io.sources import Source, Stored, open_source

_IMAGES = 64  # of --data are looked at


@dataclass(frozen=True)
class Sampled:
    """Some of the user's images at the size of the input, and their classes where known."""

    images: list[Image]  # [height, width, C] each
    classes: list[int | None]


def sampled(data: str, labels: Path | None, known: Classes, p: Preprocessing, say: Say) -> Sampled:
    """Images from all over `data`, labelled by `labels` or by what lies with them.

    Raises
    ------
    ZottaError
        If no image can be read, or `labels` does not fit the images or the model.
    """
    source = open_source(data)
    if isinstance(source, Stored):
        source = replace(source, images=source.images.spread(_IMAGES))
    numbers = _numbers(source, labels, known, say)
    samples = [(fit(each.image, p), numbers.get(each.name)) for each in islice(source, _IMAGES)]
    if not samples:
        raise ZottaError(f"--data {data} holds no images that can be read")
    return Sampled([image for image, _ in samples], [number for _, number in samples])


def _numbers(source: Source, labels: Path | None, known: Classes, say: Say) -> Labels[int]:
    """Labels that nobody asked for may be another model's."""
    try:
        return source.labels(labels, known) or Labels({})
    except ZottaError as error:
        if labels is not None:
            raise
        say(f"the labels that lie with the images are not used: {error}")
        return Labels({})
