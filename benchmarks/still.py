"""Streams that are no sample of a world: still scenes, few classes, and in bad conditions.

    python benchmarks/still.py --model deit_int8.onnx --data imagenet-val/ --labels labels.csv \
        --rows 0:1000 --classes 151:269

Prints Markdown: accuracy without adaptation, and what a method gains with the same batches.
Without --model and --data: the digits that ship inside.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel
from zotta_edge.corruptions import corrupt
from zotta_edge.models import embedded
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.sources import open_source

Image = NDArray[np.uint8]
Labels = NDArray[np.int64]
CLEAN = "clean"


@dataclass(frozen=True)
class Stream:
    """Images in order; the models are reset before."""

    images: Sequence[Image]
    labels: Labels


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    model = AdaptiveModel.load(args.model, method=args.method)
    plain = AdaptiveModel.load(args.model, method="none")
    images, labels = read(args, model)
    print("| stream | batch | images | none | gain | worst stream |\n" + "| --- " * 6 + "|")
    for title, streams in studies(images, labels, args).items():
        for batch in args.batch_sizes:
            rows = [_measured(stream, plain, model, batch) for stream in streams]
            print(_row(title, batch, rows), flush=True)
    return 0


def studies(
    images: list[Image], labels: Labels, args: argparse.Namespace
) -> dict[str, list[Stream]]:
    streams: dict[str, list[Stream]] = {}
    drawn = np.random.default_rng(args.seed).permutation(len(images))[: args.scenes]
    for corruption in args.corruptions:
        streams[f"one scene, {corruption}"] = [
            _still(images, labels, [index], args.frames, corruption) for index in drawn
        ]
        streams[f"four scenes, {corruption}"] = [
            _still(images, labels, list(four), args.frames, corruption)
            for four in np.split(drawn, range(4, len(drawn), 4))
        ]
        streams |= _few_classes(images, labels, args, corruption)
    return streams


def _still(
    images: list[Image], labels: Labels, scenes: list[int], frames: int, corruption: str
) -> Stream:
    """Every frame of a scene is corrupted anew, as a sensor would."""
    shown = np.repeat(scenes, frames)
    stream = [seen(images[index], corruption, [at, index]) for at, index in enumerate(shown)]
    return Stream(stream, labels[shown])


def _few_classes(
    images: list[Image], labels: Labels, args: argparse.Namespace, corruption: str
) -> dict[str, list[Stream]]:
    low, high = args.classes
    few = np.flatnonzero((labels >= low) & (labels < high))
    by_class = np.argsort(labels, kind="stable")
    orders = {
        "sorted by class": by_class[: args.images],
        f"classes {low} to {high - 1}": few[: args.images],
        f"classes {low} to {high - 1}, sorted": few[np.argsort(labels[few], kind="stable")],
        "shuffled": np.arange(min(len(images), args.images)),
    }
    return {
        f"{name}, {corruption}": [
            Stream([seen(images[i], corruption, [0, i]) for i in order], labels[order])
        ]
        for name, order in orders.items()
    }


def seen(image: Image, corruption: str, seed: Sequence[int]) -> Image:
    return image if corruption == CLEAN else corrupt(image, corruption, 5, [int(n) for n in seed])


def _measured(
    stream: Stream, plain: AdaptiveModel, model: AdaptiveModel, batch: int
) -> tuple[int, float, float]:
    """Images, accuracy without and with adaptation, in percent."""
    none, adapted = (_accuracy(stream, each, batch) for each in (plain, model))
    return len(stream.images), none, adapted


def _accuracy(stream: Stream, model: AdaptiveModel, batch: int) -> float:
    model.reset()
    right = [
        model.predict(stream.images[start : start + batch]).logits.argmax(axis=1)
        == stream.labels[start : start + batch]
        for start in range(0, len(stream.images), batch)
    ]
    return 100 * float(np.concatenate(right).mean())


def _row(title: str, batch: int, rows: list[tuple[int, float, float]]) -> str:
    images = sum(count for count, _, _ in rows)
    none = float(np.mean([before for _, before, _ in rows]))
    gains = [after - before for _, before, after in rows]
    return (
        f"| {title} | {batch} | {len(rows)} x {images // len(rows)} | {none:.1f} "
        f"| {np.mean(gains):+.1f} | {min(gains):+.1f} |"
    )


def read(args: argparse.Namespace, model: AdaptiveModel) -> tuple[list[Image], Labels]:
    source = open_source(args.data)
    truth = source.labels(args.labels, Classes.of(model.info))
    first, last = args.rows
    rows = [sample for at, sample in enumerate(source) if first <= at < last]
    return [sample.image for sample in rows], np.array([truth[sample.name] for sample in rows])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--data", default=str(embedded.STREAM))
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--method", default="primed")
    parser.add_argument("--rows", type=interval, default=(0, 1000), help="first:last image")
    parser.add_argument("--classes", type=interval, default=(0, 3), help="first:last of the few")
    parser.add_argument("--corruptions", type=names, default=[CLEAN], help="severity 5")
    parser.add_argument("--batch-sizes", type=numbers, default=[16])
    parser.add_argument("--scenes", type=int, default=40, help="drawn at random")
    parser.add_argument("--frames", type=int, default=64, help="of each scene")
    parser.add_argument("--images", type=int, default=500, help="of other streams, at most")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def interval(text: str) -> tuple[int, int]:
    first, last = text.split(":")
    return int(first), int(last)


def names(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
