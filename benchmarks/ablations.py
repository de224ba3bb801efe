"""The paper's ablations in kind: loss, pairs, lambda2, batch size, layers, source samples.

python benchmarks/ablations.py --model deit_int8.onnx --data imagenet-val/ --labels labels.csv \
    --source calibration-images/ --corruptions gaussian_noise,defocus_blur,fog,contrast \
    --images 500 --output ablations/

Every study is a run of `zotta-edge bench` in a folder of its own, so a run that was stopped goes on
where it was. ablations.md gathers the means. Adaptation happens on every batch, as in the paper.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zotta_edge.bench.data.datasets import open_dataset
from zotta_edge.bench.report.results import Summary
from zotta_edge.bench.report.tables import spread, times
from zotta_edge.bench.run.conditions import Model, Request
from zotta_edge.bench.run.variants import Variant, parse_variants
from zotta_edge.bench.session import Execution, bench
from zotta_edge.calibration.calibrate import Settings, calibrate, store
from zotta_edge.calibration.selection import Choice, Rule
from zotta_edge.corruptions import CORRUPTIONS
from zotta_edge.errors import ZottaError
from zotta_edge.export.quantize.target import describe_machine
from zotta_edge.files import replacing
from zotta_edge.runtime.io.classes import Classes

PAIRS = (1, 2, 5, 14)
ALIGNMENT = (0.1, 0.2, 0.4, 0.5, 1, 2, 5)  # lambda2
SAMPLES = (8, 16, 32, 64, 128, 256)
BATCHES = (1, 2, 4, 16, 64)
QUEUES = (1, 4, 5)  # samples behind the statistics; 5 are four past ones and the newest
TOGETHER = 3  # consecutive layers that adapt
SETS = (1, 2, 4, 5)  # other numbers of them
RULES: tuple[Rule, ...] = ("purity", "parameters", "gradient", "influence")  # DRLS, CMP2 to CMP4


@dataclass(frozen=True)
class Study:
    """One question: the same request but for one thing."""

    name: str
    request: Request
    shows: str = "variant"  # what a row of its table is named for


def studies(request: Request, args: argparse.Namespace) -> Iterator[Study]:
    method = args.method
    yield Study("loss", varied(request, args, {
        "entropy": f"{method};alignment_weight=0",
        "sfaa": f"{method};entropy_weight=0",
        "both": method,
    }))  # fmt: skip
    yield Study("pairs", varied(request, args, {f"k{k}": f"{method};pairs={k}" for k in PAIRS}))
    weights = {f"lambda2_{value:g}": f"{method};alignment_weight={value}" for value in ALIGNMENT}
    yield Study("lambda2", varied(request, args, weights))
    yield Study("layers", varied(request, args, _layer_choices(request.models[0], method)))
    yield Study("sets", varied(request, args, _layer_sets(request.models[0], method)))
    queues = {f"queue_{size}": f"{method};queue={size}" for size in QUEUES}
    small = replace(varied(request, args, queues), batches=(1, 2))
    yield Study("queue", small, shows="batch_size")
    usual = varied(request, args, {method: method})
    yield Study("batch", replace(usual, batches=BATCHES), shows="batch_size")
    if args.source:
        models = tuple(recalibrated(request.models[0], args, count) for count in SAMPLES)
        yield Study("samples", replace(usual, models=models), shows="model")
        yield Study("rules", varied(request, args, _rules(request.models[0], args)))


def varied(request: Request, args: argparse.Namespace, variants: dict[str, str]) -> Request:
    texts = [f"{name}={text}" for name, text in variants.items()]
    return replace(request, variants=parse_variants(["none"], texts, ["always=true", *args.set]))


def _layer_choices(model: Model, method: str) -> dict[str, str]:
    """Every run of three consecutive layers, all of them, and what calibration chose."""
    count = len(model.info.layers)
    together = min(TOGETHER, count)
    windows = [range(first, first + together) for first in range(count - together + 1)]
    choices = {f"layers_{w[0]}-{w[-1]}": f"{method};layers={list(w)}" for w in windows}
    every = f"{method};layers={list(range(count))}"
    return {"calibrated": method, **choices, "all": every}


def _layer_sets(model: Model, method: str) -> dict[str, str]:
    """Every run of one, two, four and five layers, where there are as many."""
    count = len(model.info.layers)
    windows = [range(first, first + size) for size in SETS for first in range(count - size + 1)]
    return {f"layers_{'+'.join(map(str, w))}": f"{method};layers={list(w)}" for w in windows}


def _rules(model: Model, args: argparse.Namespace) -> dict[str, str]:
    """What DRLS and the rules it is compared with choose from the same images."""
    chosen = {
        rule: calibrate(model.path, args.source, settings=Settings(Choice(rule=rule))).info.chosen
        for rule in RULES
    }
    for rule, layers in chosen.items():
        print(f"{rule}: layers {list(layers)}", file=sys.stderr)
    return {rule: f"{args.method};layers={list(layers)}" for rule, layers in chosen.items()}


def recalibrated(model: Model, args: argparse.Namespace, count: int) -> Model:
    """The model with statistics of `count` source images; its layers stay."""
    choice = Choice(layers=model.info.chosen)
    report = calibrate(model.path, args.source, settings=Settings(choice, count))
    if report.calibration.samples != count:
        raise ZottaError(f"{args.source} has fewer than {count} images: give more")
    path = args.output / "models" / f"{model.name}-{count}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    return Model.open(store(report, path))


def table(study: Study, summaries: Sequence[Summary]) -> str:
    lines = [f"## {study.name}\n", "| | accuracy | gain | least gain | passes | time | half gain |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for one in summaries:
        cells = (
            _label(one, study.shows),
            spread(one.mean),
            "" if one.is_plain else spread(one.gain, "+"),
            "" if one.is_plain else f"{min(one.gains.values()):+.1f}",
            f"{one.passes:.2f}",
            times(1.0 if one.is_plain else one.time_ratio),
            one.half_gain or "-",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _label(one: Summary, shows: str) -> str:
    return one.variant if shows == "variant" else f"{one.variant}, {getattr(one.protocol, shows)}"


def main() -> None:
    args = _arguments()
    model = Model.open(args.model)
    data = open_dataset(args.data, Classes.of(model.info), args.labels)
    data.name = Path(args.data).name
    request = Request(
        models=(model,),
        data=data,
        variants=(Variant("none", "none"),),
        corruptions=CORRUPTIONS
        if args.corruptions == "all"
        else tuple(args.corruptions.split(",")),
        severities=(args.severity,),
        batches=(args.batch_size,),
        seeds=tuple(range(args.seeds)),
        images=args.images,
        rows=(0, args.last),
    )
    command = shlex.join(["python", *sys.argv])
    sections = [f"# Ablations of {model.name}\n\n    {command}\n"]
    for study in studies(request, args):
        if args.only and study.name not in args.only.split(","):
            continue
        how = Execution(
            output=args.output / study.name,
            conditions=args.output / "conditions",  # plain inference is the same in most
            jobs=1,
            shared=True,  # no memory is shown
            record={"command": command, "cpu": describe_machine()},
        )
        print(f"{study.name}:", file=sys.stderr)
        found = [one for own in bench(study.request, how).values() for one in own]
        sections.append(table(study, found) + "\n")
        with replacing(args.output / "ablations.md") as temporary:
            temporary.write_text("\n".join(sections))
    print("\n".join(sections))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="calibrated")
    parser.add_argument("--data", required=True)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--source", help="clean images, for the number of source samples")
    parser.add_argument("--method", default="zotta")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--corruptions", default="all")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--last", type=int, help="draw from the images before this one only")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", help="studies, with commas: loss, pairs, lambda2, ...")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
