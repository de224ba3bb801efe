"""Streams whose classes come in an order: sorted, in runs, by a Dirichlet draw, or in none.

    python benchmarks/sorted.py --model rn26_int8.onnx --data cifar.npz --rows 0:500 \
        --batch-sizes 1,16,64 --orders 3

Prints Markdown: accuracy without adaptation, and what each method gains over it on the same
images, as mean and spread over orders of the mean over corruptions; the least gain of all streams;
and the gain on clean images. A stream of `mixed` shows every image in a corruption of its own.
Without --model and --data: the digits that ship inside.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from still import CLEAN, Image, Labels, interval, names, numbers, read, seen

from zotta_edge import AdaptiveModel
from zotta_edge.corruptions import CORRUPTIONS
from zotta_edge.models import embedded
from zotta_edge.runtime.io.preprocessing import as_batch

Rows = NDArray[np.intp]
MIXED = "mixed"
Key = tuple[str, int, str]  # stream, batch, method
Gains = dict[Key, dict[str, list[tuple[float, float]]]]  # by corruption: none and gain, by order


def shuffled(labels: Labels, rng: Generator) -> Rows:
    return rng.permutation(len(labels))


def one_after_another(labels: Labels, rng: Generator) -> Rows:
    """Every class once, in any order."""
    order, place = rng.permutation(len(labels)), rng.permutation(labels.max() + 1)
    return order[np.argsort(place[labels[order]], kind="stable")]


def in_runs(labels: Labels, rng: Generator) -> Rows:
    """3 to 20 images of a class, then of another."""
    left = {label: rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)}
    parts = []
    while left:
        label, count = rng.choice(list(left)), int(rng.integers(3, 21))
        parts.append(left[label][:count])
        left[label] = left[label][count:]
        left = {label: rows for label, rows in left.items() if len(rows)}
    return np.concatenate(parts)


def dirichlet(labels: Labels, rng: Generator) -> Rows:
    """Ten stretches; each class is shared out among them by a Dirichlet draw of 0.1."""
    stretches: list[list[int]] = [[] for _ in range(10)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        ends = (np.cumsum(rng.dirichlet(np.full(10, 0.1))) * len(rows)).astype(int)[:-1]
        for stretch, part in zip(stretches, np.split(rows, ends), strict=True):
            stretch.extend(part.tolist())
    return np.concatenate([rng.permutation(np.array(rows, np.intp)) for rows in stretches])


STREAMS: Mapping[str, Callable[[Labels, Generator], Rows]] = {
    "sorted": one_after_another,
    "runs": in_runs,
    "dirichlet": dirichlet,
    "shuffled": shuffled,
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    plain = AdaptiveModel.load(args.model, method="none", threads=args.threads)
    models = {
        name: AdaptiveModel.load(args.model, method=name, threads=args.threads)
        for name in args.methods
    }
    images, labels = _few(*read(args, plain), args.classes)
    found: Gains = defaultdict(lambda: defaultdict(list))
    try:
        for corruption in [*args.corruptions, *([MIXED] if args.mixed else [])]:
            shown = _shown(images, corruption, args.corruptions)
            prepared = as_batch(shown, plain.info.preprocessing)
            right = _answers(plain, prepared, 16) == labels
            for key, order in _streams(args, labels):
                answers = _answers(models[key[2]], prepared[order], key[1])
                none = 100 * float(right[order].mean())
                gain = 100 * float((answers == labels[order]).mean()) - none
                found[key][corruption].append((none, gain))
            print(f"<!-- {corruption}: {100 * right.mean():.1f} without adaptation -->", flush=True)
    finally:  # what was measured before an interruption is not lost
        _print(found)
    return 0


def _streams(args: argparse.Namespace, labels: Labels) -> Iterator[tuple[Key, Rows]]:
    for stream in args.streams:
        for seed in range(args.orders):
            order = STREAMS[stream](labels, np.random.default_rng([args.seed, seed]))
            for batch in args.batch_sizes:
                yield from (((stream, batch, method), order) for method in args.methods)


def _few(
    images: list[Image], labels: Labels, classes: tuple[int, int] | None
) -> tuple[list[Image], Labels]:
    low, high = classes or (0, labels.max() + 1)
    rows = np.flatnonzero((labels >= low) & (labels < high))
    return [images[row] for row in rows], labels[rows]


def _shown(images: list[Image], corruption: str, all_of_them: Sequence[str]) -> list[Image]:
    one = [corruption] if corruption != MIXED else list(all_of_them)
    return [seen(image, one[row % len(one)], [0, row]) for row, image in enumerate(images)]


def _answers(model: AdaptiveModel, images: NDArray[np.float32], batch: int) -> Labels:
    model.reset()
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    return np.concatenate([model.predict(part).logits.argmax(axis=1) for part in parts])


def _print(found: Gains) -> None:
    print(
        "| stream | batch | method | none | gain | least | clean | mixed |\n" + "| --- " * 8 + "|"
    )
    for (stream, batch, method), by in found.items():
        drifted = np.array([by[name] for name in by if name not in (CLEAN, MIXED)])
        gains = drifted[..., 1] if len(drifted) else np.array([[np.nan]])
        least = min(gain for rows in by.values() for _, gain in rows)
        none = np.mean([none for name in by for none, _ in by[name] if name not in (CLEAN, MIXED)])
        means = gains.mean(axis=0)
        cells = [stream, str(batch), method, f"{none:.1f}"]
        cells += [f"{means.mean():+.1f} +- {means.std():.1f}", f"{least:+.1f}"]
        cells += [_mean(by.get(name, [])) for name in (CLEAN, MIXED)]
        print("| " + " | ".join(cells) + " |")


def _mean(rows: list[tuple[float, float]]) -> str:
    return f"{np.mean([gain for _, gain in rows]):+.1f}" if rows else ""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--data", default=str(embedded.STREAM))
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--rows", type=interval, default=(0, 500), help="first:last image")
    parser.add_argument("--classes", type=interval, help="first:last, only these")
    parser.add_argument("--methods", type=names, default=["primed", "lame"])
    parser.add_argument("--streams", type=names, default=list(STREAMS))
    parser.add_argument("--corruptions", type=names, default=[CLEAN, *CORRUPTIONS])
    parser.add_argument("--mixed", action="store_true", help="all corruptions at once, too")
    parser.add_argument("--batch-sizes", type=numbers, default=[16])
    parser.add_argument("--orders", type=int, default=3, help="of the images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
