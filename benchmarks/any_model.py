"""Files as they come, from export to adaptation: what each gains by default, beside BN-Adapt.

    python benchmarks/any_model.py resnet20_bn.onnx resnet20_folded.onnx --source source.npz \
        --data report.npz --images 500 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225

Every file is exported and calibrated into --output (those that are there already are taken as they
are), then run on corrupted images, each stream from the source again, in the order given, sorted
by class or (`permuted`) in batches of one class each, in any order. Prints Markdown: accuracy
without adaptation, and what a method gains on the mean, on the worst corruption and on clean
images; of these also what the file as it came has (`own`), by plain ONNX Runtime. With --prime,
both ways to adapt are compared first. Without --mean, export finds the preprocessing on the source
images.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from still import CLEAN, Image, interval, names, numbers

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.__main__ import main as zotta_edge
from zotta_edge.corruptions import CORRUPTIONS, corrupt_batch
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.preprocessing import as_batch, fit
from zotta_edge.runtime.io.sources import open_source

Labels = NDArray[np.intp]
DEFAULT = "default"


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    print("| file | method | batch | order | none | gain | worst | own | clean, none | clean |")
    print("| --- " * 10 + "|")
    for file in args.files:
        try:
            made = adaptable(file, args)
            for row in measured(file, made, args):
                print(f"| {file.name} | {row} |", flush=True)
        except ZottaError as error:
            print(f"| {file.name} | {error} |" + " |" * 8, flush=True)
    return 0


def adaptable(file: Path, args: argparse.Namespace) -> Path:
    """The file exported and calibrated; where that fails, the commands have said why."""
    output: Path = args.output / f"{file.stem}.onnx"
    if output.exists() and read_info(output).calibration:  # not one that was interrupted
        return output
    started = time.perf_counter()
    known = ["--mean", args.mean, "--std", args.std] if args.mean else []
    fold = ["--fold"] if args.fold else []
    _command(["export", str(file), "-o", str(output), "--data", args.source, *known, *fold])
    exported = time.perf_counter() - started
    prime = ["--prime"] if args.prime else []
    _command(["calibrate", str(output), "--source", args.source, *prime])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - started - exported
    print(f"<!-- {file.name}: export {exported:.0f} s, calibration {seconds:.0f} s, ", end="")
    print(f"{peak:.0f} MB at most -->")
    return output


def _command(arguments: list[str]) -> None:
    if zotta_edge(arguments):
        raise ZottaError(f"zotta-edge {arguments[0]} failed")


def measured(file: Path, model: Path, args: argparse.Namespace) -> list[str]:
    images, labels = read(model, args)
    own = own_accuracy(file, model, images, labels)
    domains = {name: _corrupted(images, name, args.seed) for name in (*args.corruptions, CLEAN)}
    rows = []
    for order in args.orders:
        plain = _accuracies(model, "none", domains, labels, batches(order, labels, 64))
        for method in args.methods:
            for batch in args.batch_sizes:
                parts = batches(order, labels, batch)
                found = _accuracies(model, method, domains, labels, parts)
                rows.append(f"{method} | {batch} | {order} | {_gains(plain, found, own)}")
    return rows


def batches(order: str, labels: Labels, size: int) -> list[Labels]:
    """Indices of the images of each batch."""
    if order == "permuted":
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        parts = [part[at : at + size] for part in classes for at in range(0, len(part), size)]
        return [parts[at] for at in np.random.default_rng(0).permutation(len(parts))]
    ranks = np.argsort(labels, kind="stable") if order == "sorted" else np.arange(len(labels))
    return [ranks[at : at + size] for at in range(0, len(ranks), size)]


def read(model: Path, args: argparse.Namespace) -> tuple[Image, Labels]:
    info, source = read_info(model), open_source(args.data)
    truth = source.labels(args.labels, Classes.of(info))
    first, last = args.rows
    samples = [sample for at, sample in enumerate(source) if first <= at < last][: args.images]
    images = np.stack([fit(sample.image, info.preprocessing) for sample in samples])
    return images, np.array([truth[sample.name] for sample in samples], np.intp)


def _corrupted(images: Image, name: str, seed: int) -> Image:
    return images if name == CLEAN else np.asarray(corrupt_batch(images, name, 5, seed))


def _accuracies(
    path: Path,
    method: str,
    domains: dict[str, Image],
    labels: Labels,
    parts: list[Labels],
) -> dict[str, float]:
    name = None if method == DEFAULT else method
    model = AdaptiveModel.load(path, Settings(), name, threads=1)
    found = {}
    for domain, images in domains.items():
        model.reset()
        right = sum(
            int((model.predict(images[part]).labels == labels[part]).sum()) for part in parts
        )
        found[domain] = 100 * right / len(labels)
    return found


def own_accuracy(file: Path, model: Path, images: Image, labels: Labels) -> float:
    """Of the file as it came, an image at a time."""
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    source, prepared = session.get_inputs()[0], as_batch(images, read_info(model).preprocessing)
    half = source.type == "tensor(float16)"
    batches = prepared.astype(np.float16 if half else np.float32)[:, None]
    answers = [np.argmax(session.run(None, {source.name: batch})[0]) for batch in batches]
    return 100 * float(np.mean(answers == labels))


def _gains(plain: dict[str, float], found: dict[str, float], own: float) -> str:
    gains = [found[name] - plain[name] for name in plain if name != CLEAN]
    none = np.mean([plain[name] for name in plain if name != CLEAN])
    clean = f"{own:.1f} | {plain[CLEAN]:.1f} | {found[CLEAN] - plain[CLEAN]:+.1f}"
    return f"{none:.1f} | {np.mean(gains):+.1f} | {min(gains):+.1f} | {clean}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.onnx")
    parser.add_argument("--source", required=True, metavar="DIR", help="images to calibrate on")
    parser.add_argument("--data", required=True, metavar="DIR", help="images to adapt on")
    parser.add_argument(
        "--labels", type=Path, metavar="CSV", help="their classes, where --data has none"
    )
    parser.add_argument("--rows", type=interval, default=(0, 10**9), metavar="FIRST:LAST")
    parser.add_argument("--images", type=int, default=1000, help="of each corruption")
    parser.add_argument("--mean", help="of the preprocessing, where the file does not say")
    parser.add_argument("--std")
    parser.add_argument("--fold", action="store_true", help="fold BatchNorms first")
    parser.add_argument("--prime", action="store_true", help="also measure the Jacobian")
    parser.add_argument("--methods", type=names, default=["bn_adapt", DEFAULT])
    parser.add_argument("--batch-sizes", type=numbers, default=[64, 1])
    parser.add_argument("--orders", type=names, default=["given", "sorted"])
    parser.add_argument("--corruptions", type=names, default=list(CORRUPTIONS))
    parser.add_argument("--seed", type=int, default=0)
    scratch = Path(tempfile.gettempdir()) / "any_model"
    parser.add_argument("--output", type=Path, default=scratch, metavar="DIR")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
