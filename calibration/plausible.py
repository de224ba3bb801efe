"""Whether the model, its preprocessing and the source images belong together.

A wrong mean and std, red for blue, or images of another domain stop nothing: the file calibrates,
adapts, and answers badly. The network's own answers tell. On images of the kind it was trained on,
prepared as in training, each is certain and they differ between images, so they hold information,

    I = H(mean_x p(x)) - mean_x H(p(x)),

of which there can be log(min(images, classes)) at most. Too little of it, or clearly more under
another usual preprocessing, is a reason to look again. Nothing is refused: a model may be weak, and
a domain hard.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.samples import Samples
from zotta_edge.format import IMAGE, LOGITS, ModelInfo, Preprocessing
from zotta_edge.presets import usual
from zotta_edge.progress import Progress
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.images import Image
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.watch.statistics import log_softmax
from zotta_edge.sessions import open_session

_IMAGES, _LABELLED, _BATCH = 64, 128, 16
_FIRST, _BEHIND = 32, 0.1  # images that all ways are tried on; how far behind a way is given up
_CLEARLY = 0.03  # of all the information there can be, that another preprocessing must add
_SURELY, _RESAMPLED = 0.95, 200  # share of bootstrap samples in which it does
_LITTLE = 0.4  # of the information there can be; in their own domain models tell 0.7 to 0.9
_SEEN, _POOR = 32, 0.25  # labelled images, and the share that is right at least

Shares = NDArray[np.float64]  # probabilities, [image, class]


def doubts(
    model: str | Path, info: ModelInfo, clean: Samples, threads: int | None = None
) -> list[str]:
    """What looks wrong, with the evidence and what to check; nothing where all looks right."""
    if info.outputs:  # no class scores: nothing tells how much the answers say
        return []
    session = open_session(Path(model), threads=threads)
    truth = _truth(info, clean)
    most = _LABELLED if np.isfinite(truth).sum() >= _SEEN else _IMAGES
    index = np.linspace(0, len(clean) - 1, min(most, len(clean))).astype(int)
    images, truth, ways = clean.images[index], truth[index], usual(info.preprocessing)
    with Progress("checking the preprocessing", len(ways) + 1) as progress:
        stated = _answers(session, images, info.preprocessing)
        progress.advance()
        others: dict[str, Shares] = {}
        for name, way in ways.items():
            if (way.mean, way.std, way.order) != _normalisation(info.preprocessing):
                answers = _promising(session, images, way, stated, truth)
                others |= {} if answers is None else {name: answers}
            progress.advance()
    found = [*_better(stated, others, truth), *_little(stated)]
    return [*_same(clean), *found, *_labels(info, clean), *_wrong(info, stated, truth)]


def _promising(
    session: Any, images: Image, way: Preprocessing, stated: Shares, truth: NDArray[np.float64]
) -> Shares | None:
    """The answers to images prepared in another way, if the first are nearly as good as stated."""
    few = slice(None, None, max(1, len(images) // _FIRST))
    if _score(_answers(session, images[few], way), truth[few]) < (
        _score(stated[few], truth[few]) - _BEHIND
    ):
        return None
    return _answers(session, images, way)


def _truth(info: ModelInfo, clean: Samples) -> NDArray[np.float64]:
    """The class of each image; NaN where nobody says."""
    known = Classes.of(info)
    found = [known.find(label) if label else None for label in clean.labels]
    return np.array([np.nan if label is None else label for label in found])


def _normalisation(p: Preprocessing) -> tuple[object, object, str]:
    return p.mean, p.std, p.order


def _answers(session: Any, images: Image, p: Preprocessing) -> Shares:
    """Answers that are not finite hold no information: all classes get the same."""
    parts = [images[at : at + _BATCH] for at in range(0, len(images), _BATCH)]
    logits = [session.run([LOGITS], {IMAGE: prepare(part, p)})[0] for part in parts]
    whole = np.concatenate(logits).astype(np.float64)
    fine = np.isfinite(whole).all(axis=1, keepdims=True)
    return np.asarray(np.exp(log_softmax(np.where(fine, whole, 0.0))))


def _told(shares: Shares) -> float:
    """Of the information that these answers could hold, the share that they do."""
    most = float(np.log(min(shares.shape)))
    return float(_entropy(shares.mean(0)) - _entropy(shares).mean()) / most


def _entropy(shares: Shares) -> Any:
    return -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=-1)


def _score(shares: Shares, truth: NDArray[np.float64]) -> float:
    return _told(shares) + _right(shares, truth)


def _right(shares: Shares, truth: NDArray[np.float64]) -> float:
    """Share of the labelled images that is answered as labelled; 0 without enough of them."""
    known = np.isfinite(truth)
    right = shares.argmax(axis=1)[known] == truth[known]
    return float(right.mean()) if len(right) >= _SEEN else 0.0


def _better(stated: Shares, others: dict[str, Shares], truth: NDArray[np.float64]) -> Iterator[str]:
    """Another preprocessing of which the network clearly makes more."""
    if not others:
        return
    name, best = max(others.items(), key=lambda other: _score(other[1], truth))
    draws = np.random.default_rng(0).integers(0, len(best), (_RESAMPLED, len(best)))

    def score(shares: Shares, draw: NDArray[np.intp]) -> float:
        return _score(shares[draw], truth[draw])

    clear = np.mean([score(best, draw) > score(stated, draw) + _CLEARLY for draw in draws])
    if clear >= _SURELY:
        shares = (_right(best, truth), _right(stated, truth))
        right = [f"{share:.0%} right, " if any(shares) else "" for share in shares]
        yield (
            f"the model makes more of the source images prepared as `{name}` than as its file says "
            f"({right[0]}{_told(best):.0%} of the information there can be, against {right[1]}"
            f"{_told(stated):.0%}): check --mean, --std and the order of channels, or export with "
            f"--preprocessing {name.split()[0]}"
        )


def _little(stated: Shares) -> Iterator[str]:
    if _told(stated) < _LITTLE:
        share = np.bincount(stated.argmax(axis=1)).max() / len(stated)
        yield (
            f"the model's answers to the source images hold {_told(stated):.0%} of the information "
            f"there can be ({share:.0%} are the same class): are these images of the domain that "
            "it was trained for, and prepared as in training?"
        )


def _same(clean: Samples) -> Iterator[str]:
    different = len(set(clean.digests))
    if 2 * different <= len(clean):
        yield f"of {len(clean)} source images {different} are different: give others"


def _labels(info: ModelInfo, clean: Samples) -> Iterator[str]:
    """Names or numbers of the source's classes that are none of the model's."""
    known = Classes.of(info)
    unknown = sorted(name for name in clean.classes if known.find(name) is None)
    named = [name for name in unknown if info.labels or name.isdecimal()]
    if 2 * len(named) > len(clean.classes):
        yield (
            f"{len(named)} of the source's {len(clean.classes)} classes are none of the model's, "
            f"such as {named[0][:40]!r}: are labels and model meant for each other?"
        )


def _wrong(info: ModelInfo, stated: Shares, truth: NDArray[np.float64]) -> Iterator[str]:
    """Labels that the answers contradict."""
    known = np.isfinite(truth)
    right = int((stated.argmax(axis=1)[known] == truth[known]).sum())
    if known.sum() >= _SEEN and right < max(_POOR, 2 / info.classes) * known.sum():
        yield (
            f"the model is right about {right} of {known.sum()} labelled source images: are the "
            "labels in the model's order, and is the preprocessing the model's own?"
        )
