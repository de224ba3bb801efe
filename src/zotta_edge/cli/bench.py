"""`zotta-edge bench`"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zotta_edge.cli.numbers import positive
from zotta_edge.errors import ZottaError

if TYPE_CHECKING:
    from zotta_edge.bench.run.conditions import Model, Request
    from zotta_edge.bench.run.origin import Origin

HELP = """Compare adaptation methods on your own model and images

Does adaptation help this model, what does it cost, and can it hurt? Without --model it runs on the
embedded digits model, which takes about a minute.

  zotta-edge bench --output try/
  zotta-edge bench --model vit_int8.onnx --data photos/ --labels labels.csv --output out/ --quick
  zotta-edge bench --model vit_int8.onnx --data photos/ --methods all --output out/
  zotta-edge bench --model vit_int8.onnx --data imagenet-c/ --corruptions noise --output out/
  zotta-edge bench --model vit_int8.onnx --data photos/ --output out/ \\
      --variant 'k1=zotta;pairs=1' --variant 'k5=zotta;pairs=5' --set always=true

DATA is a folder of images with a labels CSV, class folders as in ImageNet (-R, -Sketch, -A),
ImageNet-C, a folder of CIFAR-10-C arrays, a CSV of names and labels, or an .npz. Clean images are
corrupted for the benchmark; data that is corrupted already is used as it is, and `--corruptions
clean` uses any data as it is. A label is a class name of the model file or a class number; images
whose label is empty or -1 are left out.

Every stream is seen once, in an order that depends on the seed, and labels are used for scoring
only. A run that was stopped continues when the same command is given again. OUTPUT gets
report.html, table.md, results.json, results.csv and conditions/, with one file for each finished
condition. `--methods all` are those of the runtime; tent, eata, sar, deyo, cotta and backprop run
in torch and need --reference and --source.
"""

_GROUPS = {"noise": slice(0, 3), "blur": slice(3, 7), "weather": slice(7, 11),
           "digital": slice(11, 15)}  # fmt: skip
_QUICK = ("gaussian_noise", "defocus_blur", "fog", "contrast")
_QUICK_IMAGES = 200


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder for the results"
    )
    parser.add_argument("--model", type=Path, nargs="+", metavar="MODEL", help="model files")
    group = parser.add_argument_group("data")
    group.add_argument("--data", metavar="DATA", help="labelled images, see above")
    group.add_argument("--labels", type=Path, metavar="CSV", help="default: the labels in DATA")
    group.add_argument(
        "--classes", type=Path, metavar="FILE", help="folder name of each class, one a line"
    )
    group.add_argument(
        "--images", type=positive, metavar="N", help="of each corruption (default: 500)"
    )
    group.add_argument(
        "--rows", type=_rows, default=(0, None), metavar="A:B", help="draw from these images only"
    )
    group = parser.add_argument_group("what is compared")
    group.add_argument(
        "--methods", type=_words, metavar="A,B", help="names, or all (default: that of `adapt`)"
    )
    group.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME=METHOD;SETTING=VALUE;...",
        help="a method with its own settings; repeatable",
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for all"
    )
    group.add_argument(
        "--reference",
        type=Path,
        metavar="CHECKPOINT",
        help="weights in torch, for methods that need back-propagation (tent, eata, sar, ...)",
    )
    group.add_argument("--source", metavar="DIR", help="clean images, for the same methods")
    group = parser.add_argument_group("streams")
    group.add_argument(
        "--corruptions",
        type=_words,
        metavar="A,B",
        help="names, noise, blur, weather, digital, extra, clean, or all (the 15; default)",
    )
    group.add_argument(
        "--severity", type=_numbers, default=(5,), metavar="N", help="1 to 5 (default: 5)"
    )
    group.add_argument(
        "--scenario",
        type=_words,
        default=("reset",),
        metavar="NAME",
        help="reset (default), continual, mixed, label-shift, correlated, mixed-correlated, "
        "gradual, single, recurring, clean",
    )
    group.add_argument(
        "--batch-size", type=_numbers, default=(64,), metavar="N", help="default: 64"
    )
    group.add_argument(
        "--seeds", type=positive, default=1, metavar="N", help="how many seeds (default: 1)"
    )
    group = parser.add_argument_group("execution")
    group.add_argument("--quick", action="store_true", help="4 corruptions, 200 images of each")
    group.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="conditions to run at a time (default: one a core)",
    )
    group.add_argument(
        "--shared",
        action="store_true",
        help="one process for all conditions: quick where streams are short, but no memory",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="check everything, estimate the time, and stop"
    )


def run(args: argparse.Namespace) -> int:
    from zotta_edge.bench.session import Execution, as_text, bench
    from zotta_edge.export.quantize.target import describe_machine
    from zotta_edge.sessions import usable_cores

    request = _request(args)
    if args.quick:
        print(
            f"quick: {len(request.corruptions)} corruptions, {request.images} images of each; "
            "leave --quick out for all of them",
            file=sys.stderr,
        )
    how = Execution(
        output=args.output,
        jobs=1 if args.shared else args.jobs or usable_cores(),
        record={"command": args.command, "cpu": describe_machine()},
        optional="all" in (args.methods or ()),
        dry_run=args.dry_run,
        shared=args.shared,
    )
    summaries = bench(request, how)
    if not args.dry_run:
        print(as_text(summaries))
    return 0


def _request(args: argparse.Namespace) -> "Request":
    from zotta_edge.bench.data.datasets import open_dataset
    from zotta_edge.bench.data.scenarios import check_scenario
    from zotta_edge.bench.run.conditions import Model, Request
    from zotta_edge.bench.run.plan import check_models
    from zotta_edge.bench.run.variants import parse_variants
    from zotta_edge.runtime.io.classes import Classes

    if (args.model is None) != (args.data is None):
        raise ZottaError("give both --model and --data, or neither for the embedded digits")
    if args.model is None:
        from zotta_edge.models import embedded

        args.model, args.data = [embedded.MODEL], embedded.STREAM
    scenarios = tuple(check_scenario(name) for name in args.scenario)
    models = tuple(Model.open(path) for path in args.model)
    check_models(models)
    usual = [] if args.variant else _default_methods(models)
    variants = parse_variants(args.methods or ["none", *usual], args.variant, args.set)
    data = open_dataset(args.data, Classes.of(models[0].info), args.labels, args.classes)
    data.name = Path(args.data).resolve().name
    return Request(
        models=models,
        data=data,
        variants=variants,
        corruptions=_corruptions(args, data.shifts),
        severities=args.severity,
        scenarios=scenarios,
        batches=args.batch_size,
        seeds=tuple(range(args.seeds)),
        images=args.images or (_QUICK_IMAGES if args.quick else 500),
        rows=args.rows,
        origin=_origin(args, any(variant.is_reference for variant in variants)),
    )


def _origin(args: argparse.Namespace, needed: bool) -> "Origin | None":
    from zotta_edge.bench.run.origin import Origin

    if not needed:
        return None
    if args.reference is None or args.source is None:
        raise ZottaError(
            "torch references need --reference CHECKPOINT, which the model was exported from, and "
            "--source DIR, clean images"
        )
    if not args.reference.is_file():
        raise ZottaError(f"{args.reference} is not a file: expected a .pth or .safetensors")
    if not Path(args.source).exists():
        raise ZottaError(f"{args.source} does not exist: expected clean images")
    return Origin.of(args.reference, str(args.source))


def _default_methods(models: Sequence["Model"]) -> list[str]:
    """What `adapt` does with these files unless told otherwise."""
    from zotta_edge.runtime.methods.registry import default_method
    from zotta_edge.runtime.settings import Settings

    return sorted({default_method(model.info, Settings()) for model in models})


def _corruptions(args: argparse.Namespace, held: Sequence[str]) -> tuple[str, ...]:
    from zotta_edge.bench.data.datasets import CLEAN
    from zotta_edge.corruptions import CORRUPTIONS, EXTRA, check

    usual = [name for name in CORRUPTIONS if not held or name in held]
    groups: dict[str, Sequence[str]] = {name: CORRUPTIONS[part] for name, part in _GROUPS.items()}
    groups |= {"all": usual, "extra": EXTRA}
    asked = args.corruptions
    if asked is None:
        few = [name for name in _QUICK if name in usual]
        asked = few if args.quick and few else ["all"]
    names = [name for part in asked for name in groups.get(part, [part])]
    for name in names:
        if name != CLEAN:
            for severity in args.severity:
                check(name, severity)
    if not names:
        raise ZottaError(f"--corruptions: the data holds {', '.join(held)}, name those you want")
    return tuple(dict.fromkeys(names))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _rows(text: str) -> tuple[int, int | None]:
    first, colon, last = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text} is not A:B")
    return int(first or 0), int(last) if last else None
