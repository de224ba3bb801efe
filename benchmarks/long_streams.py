"""Accuracy against the images seen, over streams longer than the data.

python benchmarks/long_streams.py --model rn26_int8.onnx --data cifar10-test.npz --images 12000 \
    --corruptions gaussian_noise,contrast --output out/ \
    --variant 'zotta-k5=zotta;always=true' --methods none,primed

The images of an .npz come several times over, each time with a corruption drawn anew, so nothing
is seen twice. All other options go to `zotta-edge bench`. Prints, for each method, the accuracy
of every stretch of the stream, how many updates it had by then, and, with --plot, draws it.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from zotta_edge.__main__ import main as zotta_edge
from zotta_edge.errors import ZottaError

Curves = Mapping[str, list[tuple[str, str]]]  # method -> correct and adapted of each stream


def main(arguments: Sequence[str] | None = None) -> int:
    args, rest = _parser().parse_known_args(arguments)
    args.output.mkdir(parents=True, exist_ok=True)
    data = args.output / f"{Path(args.data).stem}-{args.images}.npz"
    repeat(Path(args.data), args.images, data)
    asked = ["--data", str(data), "--images", str(args.images), "--output", str(args.output)]
    if code := zotta_edge(["bench", *asked, *rest]):
        return code
    curves = read(args.output / "results.json")
    print(table(curves, args.stretch))
    if args.plot:
        draw(curves, args.stretch, args.plot)
    return 0


def repeat(source: Path, images: int, target: Path) -> None:
    """As many images as are wanted, those of `source` over and over."""
    with np.load(source) as stored:
        order = np.arange(images) % len(stored["images"])
        np.savez(target, images=stored["images"][order], labels=stored["labels"][order])


def read(results: Path) -> Curves:
    curves: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for one in json.loads(results.read_text())["conditions"]:
        sizes = one["batches"]
        adapted = "".join(flag * size for flag, size in zip(one["adapted"], sizes, strict=True))
        curves[one["condition"]["variant"]].append((one["correct"], adapted))
    return curves


def table(curves: Curves, stretch: int) -> str:
    """Accuracy of each stretch, mean over the streams."""
    length = min(len(correct) for streams in curves.values() for correct, _ in streams)
    starts = range(0, length - stretch + 1, stretch)
    lines = [f"| images seen | {' | '.join(curves)} |", "| --- |" + " --- |" * len(curves)]
    for start in starts:
        cells = [f"{_share(streams, start, start + stretch):.1f}" for streams in curves.values()]
        lines.append(f"| {start + 1}-{start + stretch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(streams: Sequence[tuple[str, str]], first: int, last: int) -> float:
    right = [correct[first:last].count("1") for correct, _ in streams]
    return 100 * float(np.mean(right)) / (last - first)


def draw(curves: Curves, stretch: int, path: Path) -> None:
    from zotta_edge.calibration.plot import require_matplotlib

    require_matplotlib(path)
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, streams in curves.items():
        length = min(len(correct) for correct, _ in streams)
        ends = list(range(stretch, length + 1, stretch))
        axes.plot(ends, [_share(streams, end - stretch, end) for end in ends], label=name)
    axes.set_xlabel("images seen")
    axes.set_ylabel("accuracy, %")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, metavar="NPZ", help="images and labels")
    parser.add_argument("--images", type=int, default=10_000, help="of each stream")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--stretch", type=int, default=1000, help="images of one mean")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ZottaError as error:
        raise SystemExit(f"error: {error}") from None
