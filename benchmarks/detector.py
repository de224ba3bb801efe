"""A detector in bad weather: does it still find what it finds on clean images?

    python benchmarks/detector.py --model detector.onnx --data photos/ --images 16

For a YOLO-like network, whose one output is [batch, 4 + classes, boxes] (centre, size, scores).
The file's own answers to the clean images are the truth. Prints Markdown: for every corruption the
share of boxes that are found again, F1 over all images, without adaptation and with it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.io.sources import open_source

Floats = NDArray[np.float32]
Boxes = NDArray[np.float32]  # [n, 6]: left, top, right, bottom, score, class
CLEAN = "clean"
SAME = 0.5  # IoU of two boxes that are the same
OVERLAP = 0.45  # IoU from which on the lesser of two boxes is dropped
CORRUPTIONS = "gaussian_noise,defocus_blur,fog,contrast,jpeg_compression"


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    models = {name: _load(args, name) for name in ("none", *args.methods)}
    images = np.stack([sample.image for sample in open_source(args.data)][: args.images])
    truth = found(models["none"], images, args)
    print(f"{sum(map(len, truth))} boxes on {len(images)} clean images\n")
    print("| corruption | " + " | ".join(models) + " |")
    print("| --- " * (len(models) + 1) + "|")
    for name in (CLEAN, *args.corruptions):
        seen = images if name == CLEAN else corrupt_batch(images, name, args.severity, args.seed)
        shares = [_f1(truth, found(model, np.asarray(seen), args)) for model in models.values()]
        print(f"| {name} | " + " | ".join(f"{share:.1f}" for share in shares) + " |", flush=True)
    return 0


def found(model: AdaptiveModel, images: NDArray[np.uint8], args: argparse.Namespace) -> list[Boxes]:
    """The boxes of every image, in a stream of their own."""
    model.reset()
    (name,), boxes = model.info.outputs, []
    for start in range(0, len(images), args.batch_size):
        batch = as_batch(images[start : start + args.batch_size], model.info.preprocessing)
        maps = model.predict_prepared(batch).outputs[name]
        boxes += [_kept(each.T, args.score) for each in maps]
    return boxes


def _kept(rows: Floats, least: float) -> Boxes:
    """Boxes whose score is high enough, without those that repeat a better one."""
    sure = rows[rows[:, 4:].max(axis=1) >= least]
    centre, half, scores = sure[:, :2], sure[:, 2:4] / 2, sure[:, 4:]
    boxes = np.c_[centre - half, centre + half, scores.max(axis=1), scores.argmax(axis=1)]
    kept: list[Floats] = []
    for box in boxes[np.argsort(-boxes[:, 4], kind="stable")]:
        if all(box[5] != other[5] or _iou(box, other) < OVERLAP for other in kept):
            kept.append(box)
    return np.array(kept, np.float32).reshape(-1, 6)


def _iou(one: Floats, other: Floats) -> float:
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:4], other[2:4])
    common = float(np.prod(np.maximum(high - low, 0)))
    areas = [float(np.prod(box[2:4] - box[:2])) for box in (one, other)]
    return common / max(sum(areas) - common, 1e-9)


def _f1(truth: list[Boxes], boxes: list[Boxes]) -> float:
    """In percent; every box of the truth can be found once."""
    matched = sum(_matched(t, b) for t, b in zip(truth, boxes, strict=True))
    return 200 * matched / max(sum(map(len, truth)) + sum(map(len, boxes)), 1)


def _matched(truth: Boxes, boxes: Boxes) -> int:
    left = list(truth)
    for box in boxes:
        same = [_iou(box, other) if box[5] == other[5] else 0.0 for other in left]
        if same and max(same) >= SAME:
            left.pop(int(np.argmax(same)))
    return len(truth) - len(left)


def _load(args: argparse.Namespace, method: str) -> AdaptiveModel:
    return AdaptiveModel.load(args.model, method=method, threads=args.threads)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--methods", type=_names, default=["moments"])
    parser.add_argument("--corruptions", type=_names, default=_names(CORRUPTIONS))
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--score", type=float, default=0.25, help="of a box that counts")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--threads", type=int, help="default: one a core")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions")
    return parser.parse_args(argv)


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    raise SystemExit(main())
