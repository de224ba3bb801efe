"""Many worlds at once: what adaptation gains when the weather is another for every image.

    python benchmarks/worlds.py --model deit_int8.onnx --data imagenet-val/ --labels labels.csv \
        --rows 0:1000 --images 100

Prints Markdown: for every kind of stream the gain over no adaptation on the same images (mean over
corruptions, least of them, clean images among them) and the forward passes an image. Streams:
each image alone (episodic), one corruption at a time (reset), its first 16 images, mixed image by
image, one after the other (continual), returning visits, day and night, mild corruptions, clean,
sorted by class and mixed, still frames. Without --model and --data: the digits that ship inside.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from still import CLEAN, Image, Labels, interval, names, numbers, read

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.corruptions import CORRUPTIONS, corrupt_batch
from zotta_edge.models import embedded
from zotta_edge.runtime.io.preprocessing import as_batch

FIRST = 16  # images of a new world
VISIT = 67  # images of a returning world
SPELL = 20  # images of a day, and of a night
FRAMES = 48  # of a still scene


@dataclass(frozen=True)
class Worlds:
    """The same images under every corruption, prepared, and what is right."""

    images: dict[str, NDArray[np.float32]]
    labels: Labels
    none: dict[str, NDArray[np.bool_]]  # whether the unadapted model is right

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def drifted(self) -> list[str]:
        return [world for world in self.images if world != CLEAN]


@dataclass(frozen=True)
class Stream:
    """(world, image) in order."""

    shown: list[tuple[str, int]]
    count: int | None = None  # images that are scored, from the first; None: all


def reset(w: Worlds, seed: int) -> Iterator[Stream]:
    """One world at a time, each in an order of its own."""
    for at, world in enumerate(w.images):
        order = np.random.default_rng([seed, at]).permutation(len(w))
        yield Stream([(world, int(index)) for index in order])


def first(w: Worlds, seed: int) -> Iterator[Stream]:
    for stream in reset(w, seed):
        for start in range(0, len(stream.shown) - FIRST + 1, FIRST):
            yield Stream(stream.shown[start : start + FIRST])


def mixed(w: Worlds, seed: int) -> Iterator[Stream]:
    shown = [(world, index) for world in w.images for index in range(len(w))]
    order = np.random.default_rng(seed).permutation(len(shown))
    yield Stream([shown[at] for at in order])


def sorted_mixed(w: Worlds, seed: int) -> Iterator[Stream]:
    """Sorted by class, every image of another world."""
    (stream,) = mixed(w, seed)
    yield Stream(sorted(stream.shown, key=lambda pair: int(w.labels[pair[1]])))


def continual(w: Worlds, seed: int) -> Iterator[Stream]:
    yield Stream([pair for stream in reset(w, seed) for pair in stream.shown])


def recurring(w: Worlds, seed: int) -> Iterator[Stream]:
    """Visits of 67 images, until every world has shown all of its images."""
    streams = [stream.shown for stream in reset(w, seed)]
    visits = range(0, len(w), VISIT)
    yield Stream(
        [pair for start in visits for one in streams for pair in one[start : start + VISIT]]
    )


def day_night(w: Worlds, seed: int) -> Iterator[Stream]:
    """Clean images and drifted ones in turns of 20; the clean ones are not scored twice."""
    for at, world in enumerate(w.drifted):
        order = np.random.default_rng([seed, at]).permutation(len(w))
        spells = [order[start : start + SPELL] for start in range(0, len(w), SPELL)]
        turns = [(CLEAN if number % 2 else world, spell) for number, spell in enumerate(spells)]
        yield Stream([(world, int(index)) for world, spell in turns for index in spell])


def still(w: Worlds, seed: int) -> Iterator[Stream]:
    """One frame for all the time, two scenes a world."""
    for at, world in enumerate(w.images):
        for index in np.random.default_rng([seed, at]).permutation(len(w))[:2]:
            yield Stream([(world, int(index))] * FRAMES)


def clean(w: Worlds, seed: int) -> Iterator[Stream]:
    order = np.random.default_rng(seed).permutation(len(w))
    yield Stream([(CLEAN, int(index)) for index in order])
    yield Stream([(CLEAN, int(index)) for index in np.argsort(w.labels, kind="stable")])


STREAMS: dict[str, Callable[[Worlds, int], Iterator[Stream]]] = {
    "alone": reset,
    "reset": reset,
    "first": first,
    "mixed": mixed,
    "continual": continual,
    "recurring": recurring,
    "day-night": day_night,
    "sorted-mixed": sorted_mixed,
    "still": still,
    "clean": clean,
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    models = {
        "alone": _load(args, episodic=True),
        "adapted": _load(args),
    }
    plain = AdaptiveModel.load(args.model, method="none", threads=args.threads)
    found, truth = read(args, plain)
    images, labels = np.stack(found[: args.images]), truth[: args.images]
    print("| stream | severity | order | none | gain | least | clean | passes |")
    print("| --- " * 8 + "|")
    for severity in args.severities:
        worlds = _worlds(images, labels, plain, severity, args)
        for name in args.streams:
            model = models["alone" if name == "alone" else "adapted"]
            for seed in range(args.orders if name == "mixed" else 1):
                print(_row(name, severity, seed, worlds, model, args.batch_size), flush=True)
    return 0


def _row(
    name: str, severity: int, seed: int, worlds: Worlds, model: AdaptiveModel, batch: int
) -> str:
    right: dict[str, list[bool]] = {world: [] for world in worlds.images}
    none: dict[str, list[bool]] = {world: [] for world in worlds.images}
    before, shown = model.passes, 0
    for stream in STREAMS[name](worlds, seed):
        model.reset()
        shown += len(stream.shown)
        answers = _answers(stream, worlds, model, batch)
        for (world, index), is_right in zip(stream.shown, answers, strict=True):
            right[world].append(is_right)
            none[world].append(bool(worlds.none[world][index]))
    gains = {w: 100 * (np.mean(right[w]) - np.mean(none[w])) for w in right if right[w]}
    drifted = [gain for world, gain in gains.items() if world != CLEAN] or list(gains.values())
    worst = min(gains, key=lambda world: float(gains[world]))
    base = 100 * np.mean([np.mean(none[world]) for world in gains])
    passes = (model.passes - before) / shown
    unscored = f"{gains[CLEAN]:+.1f}" if CLEAN in gains else ""
    return (
        f"| {name} | {severity} | {seed} | {base:.1f} | {np.mean(drifted):+.2f} "
        f"| {gains[worst]:+.1f} {worst} | {unscored} | {passes:.3f} |"
    )


def _answers(stream: Stream, worlds: Worlds, model: AdaptiveModel, batch: int) -> list[bool]:
    right: list[bool] = []
    for start in range(0, len(stream.shown), batch):
        part = stream.shown[start : start + batch]
        images = np.stack([worlds.images[world][index] for world, index in part])
        answers = model.predict_prepared(images).labels
        right += (answers == worlds.labels[[index for _, index in part]]).tolist()
    return right


def _worlds(
    images: Image, labels: Labels, plain: AdaptiveModel, severity: int, args: argparse.Namespace
) -> Worlds:
    seen = {CLEAN: images}
    for name in args.corruptions:
        seen[name] = np.asarray(corrupt_batch(images, name, severity, args.seed))
    prepared = {name: as_batch(each, plain.info.preprocessing) for name, each in seen.items()}
    none = {name: _right(plain, batch, labels) for name, batch in prepared.items()}
    return Worlds(prepared, labels, none)


def _right(plain: AdaptiveModel, images: NDArray[np.float32], labels: Labels) -> NDArray[np.bool_]:
    parts = np.array_split(np.arange(len(images)), -(-len(images) // 16))
    answers = np.concatenate([plain.predict_prepared(images[part]).labels for part in parts])
    return np.asarray(answers == labels)


def _load(args: argparse.Namespace, episodic: bool = False) -> AdaptiveModel:
    settings = Settings(episodic=episodic)
    return AdaptiveModel.load(args.model, settings, args.method, threads=args.threads)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--data", default=str(embedded.STREAM))
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--method", default="primed")
    parser.add_argument("--rows", type=interval, default=(0, 1000), help="first:last image")
    parser.add_argument("--images", type=int, default=100, help="of every world")
    parser.add_argument("--streams", type=names, default=list(STREAMS))
    parser.add_argument("--corruptions", type=names, default=list(CORRUPTIONS))
    parser.add_argument("--severities", type=numbers, default=[5])
    parser.add_argument("--orders", type=int, default=3, help="of mixed streams")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, help="default: one a core")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
