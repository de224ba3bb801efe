"""The wrong preprocessing, the wrong labels, the wrong images: does `calibrate` notice?

    python benchmarks/trust/wrong_model.py
    python benchmarks/trust/wrong_model.py --model rn26_int8.onnx --source cifar_source.npz

Prints Markdown: how many of the labelled source images the model gets right when something is
wrong, and what `calibrate` says about it. It must say nothing where all is right, and something
where more than a tenth of what was right is lost.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from study import Record

from zotta_edge.calibration.plausible import doubts
from zotta_edge.calibration.samples import Samples, read_samples
from zotta_edge.format import IMAGE, LOGITS, ModelInfo
from zotta_edge.models import embedded
from zotta_edge.presets import usual
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.labels import Labels, Written
from zotta_edge.runtime.io.preprocessing import fit, prepare
from zotta_edge.sessions import open_session

LOST = 10.0  # percent points that must be noticed


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record, info = Record("wrong model"), read_info(args.model)
    clean = _samples(args, info)
    session = open_session(args.model, threads=1)
    right = _right(session, info, clean)
    print("| what is wrong | right | noticed |\n| --- | --- | --- |")
    for name, stated, shown in cases(info, clean):
        said = doubts(args.model, stated, shown, threads=1)
        score = _right(session, stated, shown)
        print(f"| {name} | {score:.0f} % | {said[0] if said else ''} |", flush=True)
        if name.startswith("nothing"):
            record.require(not said, f"a false alarm: {said}")
        elif right - score > LOST:
            record.require(said, f"{name} costs {right - score:.0f} points and is not noticed")
        record.saw("noticed" if said else "not noticed")
    return record.close()


def cases(info: ModelInfo, clean: Samples) -> Iterator[tuple[str, ModelInfo, Samples]]:
    p = info.preprocessing
    yield "nothing", info, clean
    yield "nothing, but no labels", info, _written(clean, [])
    for name, way in usual(p).items():
        if (way.mean, way.std, way.order) != (p.mean, p.std, p.order):
            yield f"prepared as {name}", replace(info, preprocessing=way), clean
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, clean.images.shape, dtype=np.uint8)
    yield "images of noise", info, replace(clean, images=noise)
    other = replace(info, labels=tuple(f"other {at}" for at in range(info.classes)))
    yield "labels of another model", other, _written(clean, [*"abcdefgh"] * len(clean))
    shifted = [str(((number or 0) + 1) % info.classes) for number in _truth(info, clean)]
    yield "labels in another order", info, _written(clean, shifted)


def _written(clean: Samples, labels: Sequence[str]) -> Samples:
    """The same images under other labels."""
    names = tuple(str(at) for at in range(len(clean)))
    known: dict[str, str | int] = dict(zip(names, labels, strict=False))
    classes = frozenset(map(str, known.values()))
    return replace(clean, classes=classes, written=Written("here", Labels(known)), names=names)


def _truth(info: ModelInfo, clean: Samples) -> list[int | None]:
    return [Classes.of(info).find(label) for label in clean.labels]


def _right(session: Any, info: ModelInfo, clean: Samples) -> float:
    batch = prepare(clean.images, info.preprocessing)
    parts = [batch[at : at + 16] for at in range(0, len(batch), 16)]
    logits = np.concatenate([session.run([LOGITS], {IMAGE: part})[0] for part in parts])
    if not any(clean.labels):
        return float("nan")
    pairs = zip(logits.argmax(axis=1), _truth(info, clean), strict=True)
    return 100 * float(np.mean([answer == label for answer, label in pairs]))


def _samples(args: argparse.Namespace, info: ModelInfo) -> Samples:
    if args.source:
        return read_samples(args.source, info.preprocessing, args.images, seed=0)
    stored = np.load(embedded.STREAM)
    images = [fit(image, info.preprocessing) for image in stored["images"][: args.images]]
    return _written(Samples(np.stack(images)), [str(label) for label in stored["labels"]])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--source", help="labelled images; default: the embedded digits")
    parser.add_argument("--images", type=int, default=128)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
