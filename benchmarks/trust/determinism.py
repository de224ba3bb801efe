"""Same seed, same stream: the same state, bit for bit? On more threads, after a restart, in parts?

    python benchmarks/trust/determinism.py
    python benchmarks/trust/determinism.py --model deit_int8.onnx --data photos/ --images 64

Prints Markdown, a row a method: `same`, or how far the logits are apart. A second run and a restart
after every batch, must be the same. Threads and the batches' sizes are told, not required: a sum of
another order rounds otherwise, and what is learned depends on what came together by design.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from study import Record, state_of, stream

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.io.sources import open_source
from zotta_edge.runtime.methods.registry import METHODS

BATCH = 16
Images = Sequence[NDArray[np.uint8]] | NDArray[np.uint8]


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("determinism")
    images = _images(args)
    print("| method | again | restarted | 2 threads | asked one by one |\n" + "| --- " * 5 + "|")
    for method in args.methods.split(","):
        try:
            AdaptiveModel.load(args.model, method=method, threads=1)
        except ZottaError as error:
            print(f"| {method} | {error} | | | |")
            continue
        with record.step(method):
            print(_row(record, args.model, method, images), flush=True)
    return record.close()


def _row(record: Record, path: Path, method: str, images: Images) -> str:
    def opened(threads: int = 1) -> AdaptiveModel:
        return AdaptiveModel.load(path, method=method, threads=threads)

    first = _through(opened(), images)
    again, restarted = _through(opened(), images), _restarting(opened, images)
    record.require(_same(first, again), f"{method}: another run differs")
    record.require(_same(first, restarted), f"{method}: differs after a restart")
    threads, parts = _through(opened(2), images), _one_by_one(opened, images)
    record.saw("methods")
    shown = [_shown(first, other) for other in (again, restarted, threads)]
    return f"| {method} | {' | '.join([*shown, parts])} |"


Seen = tuple[str, NDArray[np.float32]]  # the state's hash, and all logits


def _through(model: AdaptiveModel, images: Images) -> Seen:
    logits = [model.predict(part).logits for part in _batches(images)]
    return state_of(model), np.concatenate(logits)


def _restarting(opened: Callable[[], AdaptiveModel], images: Images) -> Seen:
    """A new process's model after every batch."""
    model, logits = opened(), []
    with tempfile.TemporaryDirectory() as folder:
        for part in _batches(images):
            logits.append(model.predict(part).logits)
            model.save_state(Path(folder) / "state")
            model = opened()
            model.load_state(Path(folder) / "state")
    return state_of(model), np.concatenate(logits)


def _one_by_one(opened: Callable[[], AdaptiveModel], images: Images) -> str:
    """Answers of an adapted model that learns no more, whole and an image at a time."""
    model = opened()
    for part in _batches(images):
        model.predict(part)
    whole = model.predict(images[:BATCH], adapt=False).logits
    alone = [model.predict(images[at : at + 1], adapt=False).logits for at in range(BATCH)]
    return _apart(whole, np.concatenate(alone))


def _batches(images: Images) -> list[Images]:
    return [images[at : at + BATCH] for at in range(0, len(images), BATCH)]


def _same(one: Seen, other: Seen) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1])


def _shown(one: Seen, other: Seen) -> str:
    return "same" if _same(one, other) else _apart(one[1], other[1])


def _apart(one: NDArray[np.float32], other: NDArray[np.float32]) -> str:
    if np.array_equal(one, other):
        return "same"
    labels = int((one.argmax(axis=1) != other.argmax(axis=1)).sum())
    return f"{np.abs(one - other).max():.1e}, {labels} of {len(one)} labels"


def _images(args: argparse.Namespace) -> Images:
    if args.data is None:
        return stream()[: args.images]
    found = open_source(args.data)
    return [sample.image for sample, _ in zip(found, range(args.images), strict=False)]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--data", help="default: the embedded digits in fog")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--methods", default=",".join(METHODS), help="default: all")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
