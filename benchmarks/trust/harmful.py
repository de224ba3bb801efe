"""Streams on which adaptation may do harm: how many does the audit catch?

    python benchmarks/trust/harmful.py --model rn26_int8.onnx --data cifar10_test.npz --rows 0:640

Sorted by class; every image in a corruption of its own; prepared in the wrong way; every second
batch poison, where only the honest ones are scored. Prints Markdown, a row a stream and method:
accuracy of the source, of the method alone and of the method watched; how often the audit made the
source answer instead, and how often values that no image of the model has did; where all images are
scored, the estimate for the last 256 beside the truth; passes an image. A stream is harmful when
the method alone loses more than 3 points, and caught when the source was made to answer. The model
must be calibrated with --prime.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from estimate import CLEAN, interval, names, read
from numpy.typing import NDArray
from study import Record

from zotta_edge import AdaptiveModel
from zotta_edge.corruptions import CORRUPTIONS, corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, Preprocessing
from zotta_edge.presets import usual
from zotta_edge.runtime.events import Discarded, Event
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.reliability import WINDOW

BATCH = 16
HARM = 3.0  # points
POISON = -1  # the label of frames that nobody scores
SORTED = (CLEAN, "gaussian_noise", "frost", "fog", "contrast", "elastic_transform")
WAYS = ("imagenet", "half", "none", "raw")  # of normalising; the file's own is no harm
HEAD = "| stream | method | source | alone | watched | holds | odd | last | estimate | passes |"
Images = list[NDArray[np.uint8]]
Labels = NDArray[np.int64]
Rng = np.random.Generator


class Stream(NamedTuple):
    name: str
    batch: Floats
    labels: Labels


class Run(NamedTuple):
    right: NDArray[np.bool_]  # of the honest images
    holds: int
    discarded: int  # times that batches were found to be prepared for another model
    estimate: float | None
    passes: float  # an image

    @property
    def caught(self) -> bool:
        return bool(self.holds or self.discarded)


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("harmful streams")
    plain = AdaptiveModel.load(args.model, method="none")
    if plain.info.reliability is None:
        raise ZottaError(f"{args.model} was not calibrated with --prime: nothing is audited")
    images, labels = read(args, plain)
    print(HEAD + "\n" + "| --- " * HEAD.count(" | ") + "| --- |")
    p, rng = plain.info.preprocessing, np.random.default_rng(args.seed)
    for stream in chain.from_iterable(KINDS[kind](p, images, labels, rng) for kind in args.streams):
        try:
            source = _run(args, stream, "none")
        except ZottaError as error:
            print(f"| {stream.name} | | refused: {error} |", flush=True)
            record.saw("refused")
            continue
        for method in args.methods:
            _compare(record, args, stream, method, source)
    return record.close()


def _compare(
    record: Record, args: argparse.Namespace, stream: Stream, method: str, source: Run
) -> None:
    alone = _run(args, stream, method, audit=0.0, misprepared=1.0)
    audited = _run(args, stream, method)
    scores = [100 * float(run.right.mean()) for run in (source, alone, audited)]
    whole = bool((stream.labels != POISON).all())
    last = f"{100 * audited.right[-WINDOW:].mean():.1f}" if whole else "-"
    shown = f"{audited.estimate:.1f}" if whole and audited.estimate is not None else "-"
    figures = " | ".join(f"{score:.1f}" for score in scores)
    row = [stream.name, method, figures, str(audited.holds), str(audited.discarded), last, shown]
    row.append(f"{audited.passes:.2f}")
    print(f"| {' | '.join(row)} |", flush=True)
    if scores[0] - scores[1] > HARM:
        record.saw(f"{method} harmful and {'caught' if audited.caught else 'not caught'}")
    else:
        record.saw(f"{method} harmless{', held all the same' if audited.caught else ''}")


def _run(args: argparse.Namespace, stream: Stream, method: str, **settings: float) -> Run:
    chosen = Settings().replace(settings)
    model = AdaptiveModel.load(args.model, chosen, method, threads=args.threads)
    parts = [slice(at, at + BATCH) for at in range(0, len(stream.labels), BATCH)]
    seen = list[Event]()
    with model.events.listening(seen.append):
        answers = np.concatenate([model.predict(stream.batch[part]).labels for part in parts])
    honest, status = stream.labels != POISON, model.status()
    said = status["accuracy"]
    estimate = None if said is None else 100 * float(said["accuracy"])
    discarded = sum(event.kind == Discarded.kind for event in seen)
    passes = model.passes / len(answers)
    return Run((answers == stream.labels)[honest], status["holds"], discarded, estimate, passes)


def _sorted(p: Preprocessing, images: Images, labels: Labels, rng: Rng) -> Iterator[Stream]:
    order = np.argsort(labels, kind="stable")
    for kind in SORTED:
        seen = images if kind == CLEAN else corrupt_batch(images, kind, 5)
        yield Stream(f"sorted, {kind}", prepare([seen[at] for at in order], p), labels[order])


def _mixed(p: Preprocessing, images: Images, labels: Labels, rng: Rng) -> Iterator[Stream]:
    """Every image in a corruption of its own."""
    mixed, kinds = list(images), rng.integers(0, len(CORRUPTIONS), len(images))
    for number, name in enumerate(CORRUPTIONS):
        rows = np.flatnonzero(kinds == number)
        shown = corrupt_batch([images[at] for at in rows], name, 5)
        for row, image in zip(rows, shown, strict=True):
            mixed[row] = image
    yield Stream("mixed", prepare(mixed, p), labels)


def _prepared(p: Preprocessing, images: Images, labels: Labels, rng: Rng) -> Iterator[Stream]:
    for name, way in usual(p).items():
        if name.split()[0] in WAYS and (way.mean, way.std, way.order) != (p.mean, p.std, p.order):
            yield Stream(f"prepared as {name}", prepare(images, way), labels)


def _poisoned(p: Preprocessing, images: Images, labels: Labels, rng: Rng) -> Iterator[Stream]:
    clean, shape = prepare(images, p), (len(images), *images[0].shape)
    own = clean[labels == np.bincount(labels).argmax()]
    poisons = {
        "black": prepare(list(np.zeros(shape, np.uint8)), p),
        "noise": prepare(list(rng.integers(0, 256, shape, dtype=np.uint8)), p),
        "one class": own[rng.integers(0, len(own), len(clean))],
    }
    for name, poison in poisons.items():
        yield _in_turns(f"poison, {name}", clean, labels, poison)


KINDS: dict[str, Callable[[Preprocessing, Images, Labels, Rng], Iterator[Stream]]] = {
    "sorted": _sorted,
    "mixed": _mixed,
    "prepared": _prepared,
    "poison": _poisoned,
}


def _in_turns(name: str, clean: Floats, labels: Labels, poison: Floats) -> Stream:
    """A batch of poison, an honest one, and so on."""
    parts = [slice(at, at + BATCH) for at in range(0, len(labels), BATCH)]
    frames = [half[part] for part in parts for half in (poison, clean)]
    truth = [half[part] for part in parts for half in (np.full_like(labels, POISON), labels)]
    return Stream(name, np.concatenate(frames), np.concatenate(truth))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--rows", type=interval, default=(0, 640), help="first:last image")
    parser.add_argument("--methods", type=names, default=["primed", "neo"])
    parser.add_argument("--streams", type=names, default=[*KINDS], help="default: all kinds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
