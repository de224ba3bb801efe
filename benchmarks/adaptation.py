"""Online accuracy of ZOTTA against no adaptation on corrupted streams, for several batch sizes.

python benchmarks/adaptation.py --model deit_int8.onnx --data imagenet-val/ --labels labels.csv \
    --corruptions gaussian_noise,contrast,defocus_blur --batch-sizes 64,16,4,1 --images 500 \
    --variant paper= --variant aligned=entropy_weight=0 --output adaptation.jsonl

Every stream is seen once, from a freshly reset model; labels are only used for scoring. A run that
was stopped goes on where it was: conditions that stand in --output are not repeated.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.export.target import describe_machine
from zotta_edge.runtime.job import adapt_stream, report
from zotta_edge.runtime.preprocessing import fit
from zotta_edge.runtime.sources import Sample, open_source


def main() -> None:
    args = _arguments()
    variants = dict(text.split("=", 1) for text in args.variant)
    done = _done(args.output)
    plain = AdaptiveModel.load(args.model, threads=args.threads).info.preprocessing
    source = open_source(args.data, limit=args.images)
    labels = source.labels(args.labels)
    samples = [Sample(sample.name, fit(sample.image, plain)) for sample in source]
    for corruption in args.corruptions.split(","):
        stream = corrupted(samples, corruption, args.severity)
        for size in (int(text) for text in args.batch_sizes.split(",")):
            for variant, text in variants.items():
                key = [args.model.name, corruption, args.severity, size, variant, len(stream)]
                if key in done:
                    continue
                settings = Settings(always=args.always).override(filter(None, text.split(";")))
                model = AdaptiveModel.load(args.model, settings, threads=args.threads)
                baseline = None if args.no_baseline else model.unadapted()
                tally = adapt_stream(model, batches(stream, size), labels=labels, plain=baseline)
                if tally.interrupted:
                    return
                row = {"key": key, "machine": describe_machine()} | report(model, args.model, tally)
                print(_line(row), flush=True)
                with args.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def corrupted(samples: list[Sample], corruption: str, severity: int) -> list[Sample]:
    if corruption == "clean":
        return samples
    images = corrupt_batch([sample.image for sample in samples], corruption, severity, seed=0)
    return [Sample(one.name, image) for one, image in zip(samples, images, strict=True)]


def batches(stream: list[Sample], size: int) -> Iterator[list[Sample]]:
    return (stream[start : start + size] for start in range(0, len(stream), size))


def _done(output: Path) -> list[Any]:
    if not output.exists():
        return []
    return [json.loads(line)["key"] for line in output.read_text().splitlines()]


def _line(row: dict[str, Any]) -> str:
    model, corruption, _, size, variant, count = row["key"]
    accuracy = row["accuracy"]
    return (
        f"{model:<18} {corruption:<15} batch {size:<3} {variant:<10} n {count}  "
        f"unadapted {_percent(accuracy['unadapted'])}  adapted {_percent(accuracy['adapted'])}  "
        f"passes {row['passes']:.2f}  time {row['time_ratio'] or 0:.2f}x  steps {row['steps']}"
    )


def _percent(share: float | None) -> str:
    return "   -" if share is None else f"{100 * share:4.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--labels")
    parser.add_argument("--corruptions", default="gaussian_noise,contrast,defocus_blur")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--batch-sizes", default="64,16,4,1")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument(
        "--variant", action="append", metavar="NAME=SETTING=VALUE;...", help="default: paper="
    )
    parser.add_argument("--always", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, default=Path("adaptation.jsonl"))
    args = parser.parse_args()
    args.variant = args.variant or ["paper="]
    return args


if __name__ == "__main__":
    main()
