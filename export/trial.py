"""Which preprocessing a network was trained with, found by trying the usual ones.

The network itself tells. Fed as it was in training, its answers to different images differ, those
to two views of one image agree, and each is certain. All three are in the information that an
answer holds about its image,

    I = H(mean_x p(x)) - mean_x H(p(x)),    p(x) the mean answer to image x and its enlarged centre.

Certainty alone, H(p(x)), misleads: a network that is fed 0 to 255 where it wants 0 to 1 is often
quite certain, of one and the same class. Labels, where there are any, add the share that is right.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.export.images import Sampled
from zotta_edge.format import IMAGE, LOGITS, Floats, Preprocessing, Trial, Tried
from zotta_edge.presets import usual
from zotta_edge.progress import Progress
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.preprocessing import prepare, resample
from zotta_edge.runtime.watch.statistics import log_softmax

_FIRST_IMAGES, _KEPT = 16, 3  # all are tried on a few images, the best of them on all
_BATCH = 16
_RESAMPLED = 200
_CENTRE = 7 / 8  # of height and width, what the second view shows


@dataclass(frozen=True)
class _Answers:
    """To the images, prepared in one way."""

    name: str
    prepared: Preprocessing
    shares: NDArray[np.float64]  # p(x), [image, class]
    right: NDArray[np.float64]  # 1 or 0; NaN where nobody knows

    def score(self, chosen: NDArray[np.intp] | slice = slice(None)) -> float:
        """Information, in units of what it can be at most, and accuracy."""
        shares, accuracy = self.shares[chosen], _mean_known(self.right[chosen])
        return _information(shares) / float(np.log(min(shares.shape))) + (accuracy or 0.0)

    def tried(self) -> Tried:
        accuracy = _mean_known(self.right)
        return Tried(self.name, len(self.shares), _information(self.shares), accuracy)


def find_preprocessing(
    session: Any, p: Preprocessing, data: Sampled
) -> tuple[Preprocessing, Trial]:
    """The way to prepare images that the network makes most of, and what each way gave.

    Parameters
    ----------
    session
        The network, with any batch size.
    p
        Size, layout and channels of its input.
    data
        Images as the network is meant for, of several classes.
    """
    ways = usual(p)
    few = Sampled(data.images[:_FIRST_IMAGES], data.classes[:_FIRST_IMAGES])
    steps = len(ways) * len(few.images) + _KEPT * len(data.images)
    with Progress("trying preprocessings", steps) as progress:
        first = [_answers(session, name, way, few, progress) for name, way in ways.items()]
        first.sort(key=_Answers.score, reverse=True)
        best = [_answers(session, a.name, a.prepared, data, progress) for a in first[:_KEPT]]
    best.sort(key=_Answers.score, reverse=True)
    certainty = _certainty(best[0], best[1])
    trial = Trial(tuple(each.tried() for each in (*best, *first[_KEPT:])), certainty)
    return replace(best[0].prepared, assumed=not trial.certain), trial


def _answers(
    session: Any, name: str, p: Preprocessing, data: Sampled, progress: Progress
) -> _Answers:
    shares = []
    for start in range(0, len(data.images), _BATCH):
        images = data.images[start : start + _BATCH]
        views = [prepare(view, p) for view in (images, [_centre(image) for image in images])]
        shares.append([_shares(session, view) for view in views])
        progress.advance(len(images), name)
    both = np.concatenate(shares, axis=1)  # [view, image, class]
    known = np.array([np.nan if c is None else c for c in data.classes])
    right = np.where(np.isnan(known), np.nan, both[0].argmax(1) == known)
    return _Answers(name, p, both.mean(0), right)


def _shares(session: Any, batch: Floats) -> NDArray[np.float64]:
    """Answers that are not finite hold no information: all classes get the same."""
    logits = session.run([LOGITS], {IMAGE: batch})[0].astype(np.float64)
    fine = np.isfinite(logits).all(axis=1, keepdims=True)
    shares: NDArray[np.float64] = np.exp(log_softmax(np.where(fine, logits, 0.0)))
    return shares


def _centre(image: Image) -> Image:
    height, width = image.shape[:2]
    top, left = (round(size * (1 - _CENTRE) / 2) for size in (height, width))
    inner = np.ascontiguousarray(image[top : height - top, left : width - left])
    return resample(inner, height, width, (height, width), "bilinear")


def _information(shares: NDArray[np.float64]) -> float:
    """H(mean_x p(x)) - mean_x H(p(x)), in nats."""
    return float(_entropy(shares.mean(0)) - _entropy(shares).mean())


def _mean_known(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _entropy(shares: NDArray[np.float64]) -> Any:
    return -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=-1)


def _certainty(best: _Answers, second: _Answers) -> float:
    """Share of bootstrap samples of the images on which `best` is still better."""
    rng, count = np.random.default_rng(0), len(best.shares)
    draws = (rng.integers(0, count, count) for _ in range(_RESAMPLED))
    return float(np.mean([best.score(draw) > second.score(draw) for draw in draws]))
