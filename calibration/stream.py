"""Images from the start of a stream, told apart by how sure the model is: drifted or not.

The detector is the largest probability of an answer (Hendrycks and Gimpel's baseline; Berger et al.
compare it with others). With images of the source at hand an answer is unsure if it is below three
quarters of theirs; without, sure means 0.9 and unsure 0.5, and what lies between is left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zotta_edge.calibration.features import BATCH, in_batches
from zotta_edge.calibration.samples import MIN_SAMPLES, Samples, Source, images_of
from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE, LOGITS, Floats, ModelInfo
from zotta_edge.progress import Progress
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.preprocessing import fit, prepare
from zotta_edge.runtime.watch.statistics import Doubles, log_softmax
from zotta_edge.sessions import open_session

QUANTILE = 0.25  # of the source's confidences
SURE, UNSURE = 0.9, 0.5  # where there is no source
LOOK = 16  # images looked at for each that is wanted, at most
_CERTAIN = 3.0  # standard errors above the quantile that a drifted stream has unsure answers

Confidence = Callable[[Floats], Doubles]  # preprocessed images -> largest probability of each


@dataclass(frozen=True)
class Gathered:
    drifted: Samples
    source: Samples | None  # None: there was a source already
    looked_at: int


def gather(
    model: str | Path,
    info: ModelInfo,
    stream: Source,
    count: int,
    source: Samples | None = None,
    threads: int | None = None,
) -> Gathered:
    """The first `count` drifted images of a stream, and as many of the source where none are given.

    Parameters
    ----------
    stream
        Images in the order in which they arrive.
    source
        Images of the source, which the confidences are compared with.
    """
    confidence = _confidence(model, threads)
    if source is None:
        high, low = SURE, UNSURE
    else:
        batches = in_batches(source.prepared(info.preprocessing))
        high = low = float(np.quantile(np.concatenate(list(map(confidence, batches))), QUANTILE))
    sure, unsure, looked_at = list[Image](), list[Image](), 0
    with Progress("looking for drifted images", count) as progress:
        for batch in _batches(stream, info, LOOK * count):
            values = confidence(prepare(np.stack(batch), info.preprocessing))
            unsure += [image for image, value in zip(batch, values, strict=True) if value < low]
            sure += [image for image, value in zip(batch, values, strict=True) if value >= high]
            looked_at += len(batch)
            progress.advance(min(len(unsure), count) - progress.done)
            if len(unsure) >= count and (source is not None or len(sure) >= count):
                break
    _check(len(sure), len(unsure), looked_at, source is not None)
    known = None if source is not None else Samples(np.stack(sure[:count]))
    return Gathered(Samples(np.stack(unsure[:count])), known, looked_at)


def _check(sure: int, unsure: int, looked_at: int, has_source: bool) -> None:
    if unsure < MIN_SAMPLES or (not has_source and sure < MIN_SAMPLES):
        missing = "unsure" if unsure < MIN_SAMPLES else "sure"
        raise ZottaError(
            f"the model is {missing} of fewer than {MIN_SAMPLES} of the stream's first {looked_at} "
            "images, so they cannot be told apart: give more of the stream, or --source and --ood"
        )
    expected = QUANTILE + _CERTAIN * (QUANTILE * (1 - QUANTILE) / looked_at) ** 0.5
    if has_source and unsure / looked_at < expected:
        raise ZottaError(
            f"{unsure} of {looked_at} answers in the stream are unsure, about as many as in the "
            "source: it does not look drifted, so it cannot tell which layers see a drift"
        )


def _confidence(model: str | Path, threads: int | None) -> Confidence:
    session = open_session(model, threads=threads)

    def confidence(images: Floats) -> Doubles:
        (logits,) = session.run([LOGITS], {IMAGE: images})
        largest: Doubles = np.exp(log_softmax(logits).max(axis=1)).astype(np.float64)
        return largest

    return confidence


def _batches(stream: Source, info: ModelInfo, most: int) -> Iterator[list[Image]]:
    """In order of arrival, as the model sees them."""
    available = images_of(stream, info.preprocessing)
    last = min(len(available), most)
    for start in range(0, last, BATCH):
        yield [
            fit(available.read(i), info.preprocessing)
            for i in range(start, min(start + BATCH, last))
        ]
