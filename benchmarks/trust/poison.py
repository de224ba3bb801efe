"""Streams that mean harm, then honest images: is the model still as good as its source?

    python benchmarks/trust/poison.py --frames 10000
    python benchmarks/trust/poison.py --model rn26_int8.onnx --data cifar10-test.npz --rows 0:500

Prints Markdown, a row a stream: clean accuracy of the source model and of the adapted one, on the
same images right after the poison and, once those are learned from, on the rest; the least accuracy
that another caller saw during the poison; and what the guard did. The model learns from
all of it. Must hold: on clean images within half a point of the source, or of the sampling error of
the difference where there are too few images to tell half a point.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from study import Record

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.models import embedded
from zotta_edge.progress import tracked
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.preprocessing import as_batch, fit
from zotta_edge.runtime.io.sources import open_source

BATCH = 16
ALLOWED = 0.5  # percent points below the source
LOOKS = 4  # times that an honest caller asks during the poison
Batch = NDArray[np.float32] | NDArray[np.uint8]
Rng = np.random.Generator


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("poison")
    model = AdaptiveModel.load(args.model, method=args.method, threads=1)
    images, labels = _clean(args, model)
    source = _right(model.unadapted(), images, labels, learn=False)
    print(f"{len(labels)} clean images, source {100 * source.mean():.1f} %, {model.method}\n")
    print("| stream | during, least | right after | once learned | guard, events |")
    print("| --- " * 5 + "|")
    for name in args.streams.split(","):
        with record.step(name):
            _poisoned(record, name, model, images, labels, source, args)
    return record.close()


def _poisoned(
    record: Record,
    name: str,
    model: AdaptiveModel,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    source: NDArray[np.bool_],
    args: argparse.Namespace,
) -> None:
    model.reset()
    seen: Counter[str] = Counter()
    number = -(-args.frames // BATCH)
    made = STREAMS[name](model, images, labels, np.random.default_rng(args.seed))
    during = []
    with model.events.listening(lambda event: seen.update([event.kind])):
        steps = tracked(range(1, number + 1), f"poison: {name}")
        for at, frames in zip(steps, made, strict=False):
            try:
                model.predict(frames)
            except ZottaError:
                seen["refused"] += 1
            if at % max(1, number // LOOKS) == 0:
                during.append(_right(model, images, labels, learn=False).mean() - source.mean())
        after = _right(model, images, labels, learn=True)
        later = _right(model, images, labels, learn=False)
    changes = [100 * (found.astype(float) - source) for found in (after, later)]
    shown = " | ".join(f"{change.mean():+.1f}" for change in changes)
    acted = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.items()))
    print(f"| {name} | {100 * min(during):+.1f} | {shown} | {acted} |", flush=True)
    for when, change in zip(("right after", "once learned"), changes, strict=True):
        error = float(change.std()) / len(change) ** 0.5
        lost = -float(change.mean()) - error
        record.require(lost <= ALLOWED, f"{name}: {change.mean():+.1f} +- {error:.1f} {when}")
    record.saw("frames", number * BATCH)


def _right(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: NDArray[np.int64], learn: bool
) -> NDArray[np.bool_]:
    parts = [slice(at, at + BATCH) for at in range(0, len(labels), BATCH)]
    answers = [model.predict(images[part], adapt=learn).labels for part in parts]
    return np.asarray(np.concatenate(answers) == labels)


def _constant(value: int) -> Callable[..., Iterator[Batch]]:
    def frames(model: AdaptiveModel, images: NDArray[np.uint8], *_: object) -> Iterator[Batch]:
        while True:
            yield np.full((BATCH, *images.shape[1:]), value, np.uint8)

    return frames


def _alternating(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: object, rng: Rng
) -> Iterator[Batch]:
    while True:
        frames = np.zeros((BATCH, *images.shape[1:]), np.uint8)
        frames[::2] = 255
        yield frames


def _noise(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: object, rng: Rng
) -> Iterator[Batch]:
    while True:
        yield rng.integers(0, 256, (BATCH, *images.shape[1:]), dtype=np.uint8)


def _not_a_number(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: object, rng: Rng
) -> Iterator[Batch]:
    """NaN, infinity and numbers that no image has, in some frames of each batch."""
    clean = as_batch(images[:BATCH], model.info.preprocessing)
    while True:
        batch = clean.copy()
        batch[rng.integers(BATCH)] = rng.choice([np.nan, np.inf, -np.inf, 3e38])
        yield batch


def _one_class(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: NDArray[np.int64], rng: Rng
) -> Iterator[Batch]:
    own = images[labels == np.bincount(labels).argmax()]
    while True:
        yield own[rng.integers(0, len(own), BATCH)]


def _sorted(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: NDArray[np.int64], rng: Rng
) -> Iterator[Batch]:
    """One class after the other, over and over."""
    order = images[np.argsort(labels, kind="stable")]
    while True:
        for at in range(0, len(order) - BATCH + 1, BATCH):
            yield order[at : at + BATCH]


def _hostile_order(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: NDArray[np.int64], rng: Rng
) -> Iterator[Batch]:
    """Always the images that the model, as it is now, gets wrong, and is surest about."""
    while True:
        drawn = rng.integers(0, len(images), 4 * BATCH)
        result = model.predict(images[drawn], adapt=False)
        sure = result.probabilities.max(axis=1)
        worst = np.argsort(np.where(result.labels == labels[drawn], 0, -sure), kind="stable")
        yield images[drawn[worst[:BATCH]]]


def _steering(
    model: AdaptiveModel, images: NDArray[np.uint8], labels: NDArray[np.int64], rng: Rng
) -> Iterator[Batch]:
    """A caller who wants all to be class 0: climbs by random changes that make it likelier."""
    frames = images[rng.integers(0, len(images), BATCH)].astype(np.int16)
    while True:
        change = rng.integers(-40, 41, frames.shape)
        tried = np.clip(frames + change, 0, 255)
        before, after = (
            model.predict(each.astype(np.uint8), adapt=False).probabilities[:, 0]
            for each in (frames, tried)
        )
        better = (after > before)[:, None, None, None]
        frames = np.where(better, tried, frames)
        yield frames.astype(np.uint8)


STREAMS: dict[str, Callable[..., Iterator[Batch]]] = {
    "black": _constant(0),
    "white": _constant(255),
    "black and white": _alternating,
    "noise": _noise,
    "not a number": _not_a_number,
    "one class": _one_class,
    "sorted": _sorted,
    "hostile order": _hostile_order,
    "steering": _steering,
}


def _clean(
    args: argparse.Namespace, model: AdaptiveModel
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    source = open_source(args.data)
    truth = source.labels(args.labels, Classes.of(model.info))
    first, last = (int(end) for end in args.rows.split(":"))
    rows = list(islice(source, first, last))
    images = [fit(sample.image, model.info.preprocessing) for sample in rows]
    return np.stack(images), np.array([truth[sample.name] for sample in rows])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=10_000, help="of each stream")
    parser.add_argument("--streams", default=",".join(STREAMS), help="default: all")
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--data", default=str(embedded.STREAM))
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--rows", default="0:1000", help="first:last clean image")
    parser.add_argument("--method", help="default: as the file says")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
