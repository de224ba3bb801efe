"""`zotta-edge adapt`"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zotta_edge.cli.numbers import positive
from zotta_edge.errors import ZottaError, visible
from zotta_edge.files import check_writable, replacing
from zotta_edge.json_numbers import finite
from zotta_edge.progress import Progress

if TYPE_CHECKING:
    from zotta_edge.runtime.adaptive import AdaptiveModel
    from zotta_edge.runtime.io.classes import Classes
    from zotta_edge.runtime.io.labels import Labels
    from zotta_edge.runtime.io.sources import Source
    from zotta_edge.runtime.job import Tally
    from zotta_edge.runtime.settings import Settings

HELP = """Predict a stream of images while adapting to it

Without arguments, it demonstrates this with the embedded model and stream.

  zotta-edge adapt --model vit_int8.onnx --data photos/ --output predictions.csv
  zotta-edge adapt --model vit_int8.onnx --data photos/ --labels labels.csv --report report.json
  zotta-edge adapt --model vit_int8.onnx --data camera:0 --batch-size 8 --state site-7.state
  find . -name '*.jpg' | zotta-edge adapt --model vit_int8.onnx --data - --output - > answers.csv

A primed file (`zotta-edge calibrate --prime`) adapts with the forward passes that predict anyway.
Other files need extra, perturbed passes: they start adapting when the stream drifts away from the
source and stop when it no longer improves; --always adapts on every batch, as in the paper.

Labels are used for scoring only: --labels, or what lies with the images (labels.csv in the folder,
`labels` in an .npz, folders that are named or numbered as the model's classes). A label is a class
name of the model file or a class number; an image whose label is empty or -1 is not scored. With
labels, the unadapted model predicts the same images for comparison. Without labels it only does so
with --baseline, because that doubles the work.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, metavar="FILE", help="a calibrated model file")
    parser.add_argument(
        "--data",
        metavar="SOURCE",
        help="image folder, glob, CSV of names, .npz / .npy, video file, camera:N, or - for paths "
        "on stdin",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="CSV",
        help="name,label lines, to score; `folders`: class folders in the order of the classes",
    )
    parser.add_argument("--batch-size", type=positive, default=16, metavar="N", help="default: 16")
    parser.add_argument("--limit", type=positive, metavar="N", help="stop after N images")
    parser.add_argument("--strict", action="store_true", help="fail on an unreadable image")
    group = parser.add_argument_group("adaptation")
    group.add_argument(
        "--method",
        metavar="NAME",
        help="primed (default where the file is primed), moments (where calibration found that it "
        "regains more, as for BatchNorm), zotta (default elsewhere), none, or for comparison lame, "
        "t3a, neo, foa, fozo, zoo, zoa, eva0, pea, and for BatchNorm bn_adapt, alpha_bn, leantta "
        "and unmix_tns",
    )
    group.add_argument(
        "--budget",
        type=float,
        metavar="N",
        help="primed: forward passes an image to spend on average (default: 1.08); from 2 on, "
        "drifted images are also predicted mirrored",
    )
    group.add_argument("--always", action="store_true", help="adapt on every batch, drifted or not")
    group.add_argument("--episodic", action="store_true", help="reset before each batch")
    group.add_argument(
        "--seed", type=int, metavar="N", help="seed of the perturbations (default: 0)"
    )
    group.add_argument("--settings", type=Path, metavar="TOML", help="settings from a file")
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="one setting; repeatable"
    )
    group.add_argument("--list-settings", action="store_true", help="show every setting and stop")
    group.add_argument(
        "--state", type=Path, metavar="FILE", help="resume from here if it exists, save here"
    )
    group = parser.add_argument_group("results")
    group.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="predictions, .csv or .jsonl; - for stdout, and the summary then goes to stderr; "
        ".npz for the outputs by name, which is all that a model without class scores gives",
    )
    group.add_argument(
        "--format", choices=("csv", "jsonl"), help="of the predictions; default: as FILE ends, csv"
    )
    group.add_argument(
        "--top-k", type=positive, default=1, metavar="K", help="classes to write for each image"
    )
    group.add_argument("--report", type=Path, metavar="JSON", help="accuracy, cost and settings")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    group.add_argument(
        "--baseline",
        action=argparse.BooleanOptionalAction,
        help="run the unadapted model beside it for comparison (default: only with labels)",
    )
    group = parser.add_argument_group("execution")
    group.add_argument("--provider", metavar="NAME", help="cpu (default), cuda, tensorrt, ...")
    group.add_argument("--threads", type=positive, metavar="N", help="default: physical cores")


def run(args: argparse.Namespace) -> int:
    from zotta_edge.runtime.engine.model_info import read_info
    from zotta_edge.runtime.settings import Settings

    if args.list_settings:
        _list_settings()
        return 0
    if (args.model is None) != (args.data is None):
        if args.model is not None:
            read_info(args.model)  # what the file lacks comes first
        raise ZottaError("give both --model and --data, or neither for the demonstration")
    settings = _settings(args, Settings)
    if args.model is None:
        from zotta_edge.models import embedded

        print(embedded.ABOUT, file=sys.stderr)
        args.model, args.data = embedded.MODEL, embedded.corrupted_stream()
    return _adapt(args, settings)


def _adapt(args: argparse.Namespace, settings: "Settings") -> int:
    from zotta_edge.runtime.io.classes import Classes
    from zotta_edge.runtime.io.output_file import outputs_to
    from zotta_edge.runtime.io.predictions import predictions_to
    from zotta_edge.runtime.io.preprocessing import fit
    from zotta_edge.runtime.io.sources import batches, open_source
    from zotta_edge.runtime.job import adapt_stream

    if args.report:
        check_writable(args.report)
    source = open_source(args.data, strict=args.strict, limit=args.limit, on_bad=_report_bad)
    with _opened(args, settings) as model:
        info = model.info
        labels = None if info.outputs else _labels(source, args, Classes.of(info))
        if info.outputs and args.labels:
            raise ZottaError("the model gives no class scores: leave --labels out")
        compares = labels is not None if args.baseline is None else args.baseline
        whole = args.output is not None and (info.outputs or args.output.suffix == ".npz")
        table = None if whole else args.output
        with (
            predictions_to(table, info.labels, min(args.top_k, info.classes), args.format) as write,
            outputs_to(args.output) if whole else nullcontext(_nothing) as keep,
            Progress("adapting", len(source) or None) as progress,
        ):
            tally = adapt_stream(
                model,
                batches(source, args.batch_size, lambda image: fit(image, info.preprocessing)),
                labels=labels,
                plain=model.unadapted() if compares else None,
                write=write,
                keep=keep,
                progress=lambda tally, count: progress.advance(count, tally.note()),
            )
    if tally.images == 0:
        raise ZottaError(f"no images in {args.data}")
    _report(args, model, tally)
    return 0


@contextmanager
def _opened(args: argparse.Namespace, settings: "Settings") -> Iterator["AdaptiveModel"]:
    """Load the model, resume it from --state, and save it there at the end."""
    from zotta_edge.runtime.adaptive import AdaptiveModel
    from zotta_edge.runtime.state.lock import claim

    with claim(args.state) if args.state else nullcontext():
        model = AdaptiveModel.load(
            args.model, settings, args.method, provider=args.provider, threads=args.threads
        )
        if args.state and args.state.exists():
            model.load_state(args.state)
        yield model
        if args.state:
            model.save_state(args.state)


def _report(args: argparse.Namespace, model: "AdaptiveModel", tally: "Tally") -> None:
    """Write the report and print it, on stderr if predictions are on stdout."""
    from zotta_edge.runtime.io.predictions import STDOUT
    from zotta_edge.runtime.job import report

    numbers = finite(report(model, args.model, tally))
    as_json = json.dumps(numbers, indent=2)
    if args.report:
        with replacing(args.report) as temporary:
            temporary.write_text(as_json + "\n")
    text = as_json if args.json else _summary(numbers, tally)
    print(text, file=sys.stderr if str(args.output) == STDOUT else sys.stdout)


def _list_settings() -> None:
    from zotta_edge.options import listing
    from zotta_edge.runtime.settings import by_methods

    print(listing(by_methods()))


def _labels(source: "Source", args: argparse.Namespace, classes: "Classes") -> "Labels[int] | None":
    """The labels of --labels, or those stored with the images; None if there are none."""
    labels = source.labels(args.labels, classes)
    own = source.written()
    if labels and own and args.labels is None and isinstance(args.data, str):
        count = sum(name in labels for name in source.names())
        print(f"labels: {own.origin}, for {count} of {len(source)} images", file=sys.stderr)
    return labels or None


def _settings(args: argparse.Namespace, kind: "type[Settings]") -> "Settings":
    """Settings from the file, then --set, then the flags that set one of them."""
    settings = kind.from_toml(args.settings) if args.settings else kind()
    settings = settings.override(args.set)
    own = {name: getattr(args, name) for name in ("always", "episodic") if getattr(args, name)}
    for name in ("seed", "budget"):
        if getattr(args, name) is not None:
            own[name] = getattr(args, name)
    return settings.replace(own)


def _summary(report: dict[str, Any], tally: "Tally") -> str:
    """The report as text."""
    lines = [f"images     {report['images']}{'  (interrupted)' if tally.interrupted else ''}"]
    before, after = report["accuracy"]["unadapted"], report["accuracy"]["adapted"]
    if after is not None:
        gained = "" if before is None else f"   unadapted {before:.1%}   gain {after - before:+.1%}"
        lines.append(f"accuracy   adapted {after:.1%}{gained}")
    if estimate := report["estimated_accuracy"]:
        low, high = estimate["low"], estimate["high"]
        lines.append(
            f"estimate   {estimate['accuracy']:.0%} of the last {estimate['images']} "
            f"{'right' if estimate['labelled'] else 'answered as if clean'} "
            f"({low:.0%} to {high:.0%}), without labels"
            + (f"; the source answered {report['holds']} times instead" if report["holds"] else "")
        )
    cost = f"cost       {report['passes']:.2f} passes an image"
    if report["time_ratio"]:
        cost += f", {report['time_ratio']:.2f}x the time"
    if report["memory_ratio"]:
        cost += f" and {report['memory_ratio']:.2f}x the memory of plain inference"
    lines.append(cost)
    if report["drift"] is not None:
        events = ", ".join(f"{name} {count}" for name, count in report["guard"].items() if count)
        lines.append(
            f"adaptation {report['steps']} steps, drift {report['drift']:.2f} standard deviations, "
            + (f"filter: {report['filter']}, " if report["filter"] else "")
            + f"guard: {events or 'nothing to do'}"
        )
    return "\n".join(lines)


def _report_bad(message: str) -> None:
    print(f"skipped: {visible(message)}", file=sys.stderr)


def _nothing(names: object, outputs: object) -> None:
    """Where no outputs are kept."""
