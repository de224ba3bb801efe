"""How close the estimate of accuracy is to the truth, and which harmful streams are caught.

    python benchmarks/trust/estimate.py --model rn26_int8.onnx --data cifar10_test.npz \
        --rows 0:1500 --methods none,primed,neo

Prints Markdown: for every stream the accuracy of the last 256 images, what was estimated of them,
the accuracy of all images with the audit, without it and without adaptation, and how often the
source was made to answer instead. The model must be calibrated with --prime. Without --model and
--data: the digits that ship inside. With --photos the estimate is fitted anew, on those.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel
from zotta_edge.calibration.calibrate import Settings as Calibrating
from zotta_edge.calibration.metadata import replace_metadata
from zotta_edge.calibration.reliability import reliability
from zotta_edge.corruptions import CORRUPTIONS, corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.format import to_metadata
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.sources import open_source
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.reliability import WINDOW

CLEAN = "clean"
HEAD = "| stream | last | estimate | audited | not audited | none | holds | passes |"


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        if args.photos:
            args.model = _refitted(args, Path(folder) / "model.onnx")
        return _study(args)


def _study(args: argparse.Namespace) -> int:
    plain = AdaptiveModel.load(args.model, method="none", threads=args.threads)
    if plain.info.reliability is None:
        raise ZottaError(f"{args.model} was not calibrated with --prime: it estimates nothing")
    images, labels = read(args, plain)
    print(HEAD + "\n" + "| --- " * HEAD.count(" | ") + "| --- |")
    for method in args.methods:
        errors = [
            _row(method, corruption, order, images, labels, args)
            for corruption in args.corruptions
            for order in args.orders
        ]
        known = [error for error in errors if error is not None]
        if known:
            print(f"\n{method}: mean absolute error {np.mean(known):.1f} points\n")
    return 0


def _refitted(args: argparse.Namespace, path: Path) -> Path:
    """The same file with an estimate that was fitted on other photos than it was primed with."""
    info = read_info(args.model)
    assert info.calibration
    settings = Calibrating(threads=args.threads)
    known = reliability(args.model, info, info.calibration, args.photos, settings)
    replace_metadata(args.model, path, to_metadata(replace(info, reliability=known)), "zotta.")
    return path


def _row(
    method: str,
    corruption: str,
    order: str,
    images: list[NDArray[np.uint8]],
    labels: NDArray[np.int64],
    args: argparse.Namespace,
) -> float | None:
    at = np.argsort(labels, kind="stable") if order == "sorted" else np.arange(len(labels))
    seen = images if corruption == CLEAN else corrupt_batch(images, corruption, args.severity)
    stream = [seen[i] for i in at]

    audited, model = _run(args, method, stream, labels[at])
    without, _ = _run(args, method, stream, labels[at], audit=0.0)
    none, _ = _run(args, "none", stream, labels[at])
    status = model.status()
    estimate, last = status["accuracy"], 100 * audited[-WINDOW:].mean()
    error = None if estimate is None else abs(100 * estimate["accuracy"] - last)
    shown = "-" if estimate is None else f"{100 * estimate['accuracy']:.1f}"
    figures = " | ".join(f"{100 * right.mean():.1f}" for right in (audited, without, none))
    print(
        f"| {method}, {corruption}, {order} | {last:.1f} | {shown} | {figures} "
        f"| {status['holds']} | {model.passes / len(stream):.2f} |",
        flush=True,
    )
    return error


def _run(
    args: argparse.Namespace,
    method: str,
    stream: list[NDArray[np.uint8]],
    labels: NDArray[np.int64],
    **settings: float,
) -> tuple[NDArray[np.bool_], AdaptiveModel]:
    """Which answers were right, and the model afterwards."""
    kind = Settings().replace(settings)
    model = AdaptiveModel.load(args.model, kind, method, threads=args.threads)
    batches = range(0, len(stream), args.batch_size)
    answers = [model.predict(stream[i : i + args.batch_size]).labels for i in batches]
    return np.concatenate(answers) == labels, model


def read(
    args: argparse.Namespace, model: AdaptiveModel
) -> tuple[list[NDArray[np.uint8]], NDArray[np.int64]]:
    source = open_source(args.data)
    truth = source.labels(args.labels, Classes.of(model.info))
    rows = list(islice(source, *args.rows))
    return [sample.image for sample in rows], np.array([truth[sample.name] for sample in rows])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--data", default=str(embedded.STREAM))
    parser.add_argument("--labels", type=Path)
    parser.add_argument(
        "--photos", help="labelled images to fit the estimate on; default: as filed"
    )
    parser.add_argument("--rows", type=interval, default=(0, 1000), help="first:last image")
    parser.add_argument("--methods", type=names, default=["none", "primed"])
    parser.add_argument("--corruptions", type=names, default=[CLEAN, *CORRUPTIONS])
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--orders", type=names, default=["shuffled", "sorted"])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int)
    return parser.parse_args(argv)


def interval(text: str) -> tuple[int, int]:
    first, last = text.split(":")
    return int(first), int(last)


def names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    raise SystemExit(main())
