"""Accuracy, size and speed of one model's precisions.

python benchmarks/precision.py --data imagenet-val/ --labels labels.csv \
    deit_fp32.onnx deit_int8.onnx deit_fp8.onnx

Times are the best of several rounds in which the files take turns, so that a noisy machine disturbs
all of them alike; trust the ratios. The first file is what the others are compared with.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from zotta_edge.export.quantize.target import describe_machine
from zotta_edge.format import IMAGE, LOGITS, Floats
from zotta_edge.runtime.engine.model_info import session_info
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.io.sources import batches, open_source
from zotta_edge.sessions import open_session

BATCHES = (1, 16, 64)


def main() -> None:
    args = _arguments()
    sessions = {path: open_session(path) for path in args.models}
    info = session_info(sessions[args.models[0]], args.models[0])
    pixels = info.preprocessing
    rows: dict[Path, dict[str, Any]] = {
        path: {"file": path.name, "bytes": path.stat().st_size} for path in args.models
    }
    correct, count = dict.fromkeys(args.models, 0), 0
    source = open_source(args.data, limit=args.images)
    labels = source.labels(args.labels, Classes.of(info))
    for batch in batches(source, 50):
        images = prepare([sample.image for sample in batch], pixels)
        truth = np.array([labels[sample.name] for sample in batch])
        count += len(batch)
        for path, session in sessions.items():
            correct[path] += int((_run(session, images).argmax(1) == truth).sum())
    for path in args.models:
        rows[path] |= {"images": count, "top1": correct[path] / count}
    for size in BATCHES:
        images = np.random.default_rng(0).standard_normal((size, *_shape(pixels)), np.float32)
        best = dict.fromkeys(args.models, float("inf"))
        for _ in range(args.rounds):
            for path, session in sessions.items():
                started = time.perf_counter()
                for _ in range(max(1, 16 // size)):
                    _run(session, images)
                elapsed = (time.perf_counter() - started) / max(1, 16 // size)
                best[path] = min(best[path], elapsed)
        for path in args.models:
            rows[path][f"ms_batch_{size}"] = 1000 * best[path]
    _print(list(rows.values()))
    if args.output:
        found = {"machine": describe_machine(), "rows": list(rows.values())}
        args.output.write_text(json.dumps(found, indent=2) + "\n")


def _run(session: Any, images: Floats) -> Floats:
    logits: Floats = session.run([LOGITS], {IMAGE: images})[0]
    return logits


def _shape(pixels: Any) -> tuple[int, int, int]:
    plane = (pixels.height, pixels.width)
    return (pixels.channels, *plane) if pixels.layout == "NCHW" else (*plane, pixels.channels)


def _print(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    print(f"| file | MB | size | top-1 of {first['images']} | " + " | ".join(
        f"time, batch {size}" for size in BATCHES) + " |")  # fmt: skip
    print("| --- " * (4 + len(BATCHES)) + "|")
    for row in rows:
        times = " | ".join(
            f"{row[key]:.1f} ms, {row[key] / first[key]:.2f}x"
            for key in (f"ms_batch_{size}" for size in BATCHES)
        )
        print(
            f"| {row['file']} | {row['bytes'] / 1e6:.2f} | {row['bytes'] / first['bytes']:.2f} | "
            f"{100 * row['top1']:.2f} | {times} |"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--data", required=True)
    parser.add_argument("--labels")
    parser.add_argument("--images", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
