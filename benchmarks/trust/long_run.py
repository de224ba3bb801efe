"""Months in short: very many small batches, drift coming and going. Does anything grow or wear out?

    python benchmarks/trust/long_run.py --batches 1000000
    python benchmarks/trust/long_run.py --longest 2 --hours 1.5

Batches of 1 to 8 images, drawn with replacement, from clean streams and corrupted ones that take
turns of a few hundred batches. Memory, file descriptors, threads and the accuracy on clean images
are read after a warm-up and fifty times on the way; the last must be as the first. Where the hours
end first, what was done by then is judged.
"""

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from study import Record, stream

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded
from zotta_edge.progress import Progress
from zotta_edge.runtime.io.preprocessing import fit

CORRUPTIONS = ("fog", "gaussian_noise", "contrast", "defocus_blur")
PARTS = 50  # between readings
TURN = (100, 600)  # batches of one condition
WARM = 800  # batches
SAVED = 500  # batches between two saves
LOST = 1.0  # points of clean accuracy that may be missing in the last tenth
GROWTH, SHORT = 1.0, 8.0  # MB an hour; in all where the run is shorter than that


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("long run")
    model = AdaptiveModel.load(embedded.MODEL, method=args.method, threads=1)
    stored = np.load(embedded.STREAM)
    clean = np.stack([fit(image, model.info.preprocessing) for image in stored["images"]])
    worlds = [clean, *(stream(name) for name in CORRUPTIONS)]
    rng, rights, readings = np.random.default_rng(args.seed), [], []
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress("batches", WARM + args.batches) as progress,
    ):
        for part in range(PARTS + 1):
            count = args.batches // PARTS if part else WARM
            _batches(model, worlds, count, args.longest, rng, Path(folder), progress)
            rights.append(_accuracy(model, clean, stored["labels"]))
            readings.append(_reading())
            hours = (time.monotonic() - started) / 3600
            done = part * (args.batches // PARTS)
            print(f"{done} in {hours:.2f} h: {readings[-1]}, clean {rights[-1]:.1f} %", flush=True)
            if hours > args.hours:
                break
    allowed = GROWTH * hours if hours > 1 else SHORT
    first, last = readings[0], readings[-1]
    record.require(last[0] - first[0] < allowed, f"memory {first[0]} -> {last[0]} MB")
    record.require(last[1:] == first[1:], f"descriptors, threads {first[1:]} -> {last[1:]}")
    record.require(rights[-1] > rights[0] - LOST, f"clean accuracy {rights[0]} -> {rights[-1]}")
    record.saw("batches", done)
    return record.close()


def _batches(
    model: AdaptiveModel,
    worlds: list[NDArray[np.uint8]],
    batches: int,
    longest: int,
    rng: np.random.Generator,
    folder: Path,
    progress: Progress,
) -> None:
    left = 0
    for number in range(batches):
        if not left:
            world, left = worlds[rng.integers(len(worlds))], int(rng.integers(*TURN))
        left -= 1
        model.predict(world[rng.integers(0, len(world), rng.integers(1, longest + 1))])
        if number % SAVED == 0:
            model.save_state(folder / "site.state")
        progress.advance()


def _reading() -> tuple[float, int, int]:
    """MB resident, open files, threads."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    resident = int(found[1]) / 1024 if found else 0.0
    return round(resident, 1), len(os.listdir("/proc/self/fd")), threading.active_count()


def _accuracy(model: AdaptiveModel, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
    """After a hundred clean images, of which it has learned."""
    model.predict(images[:100])
    answers = [model.predict(images[at : at + 16], adapt=False).labels for at in range(0, 960, 16)]
    return 100 * float((np.concatenate(answers) == labels[:960]).mean())


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--longest", type=int, default=8, help="images of a batch, at most")
    parser.add_argument("--hours", type=float, default=float("inf"), help="no part begins later")
    parser.add_argument("--method", help="default: as the file says")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
