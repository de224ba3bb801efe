"""`zotta-edge calibrate`"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zotta_edge.errors import ZottaError
from zotta_edge.files import check_writable

if TYPE_CHECKING:
    from zotta_edge.calibration.calibrate import Report
    from zotta_edge.calibration.samples import Source
    from zotta_edge.format import ModelInfo

HELP = """Measure the source domain, choose the layers to adapt, and store both in the file

The quantized model is run on a few images of the domain it was trained for (DIR: a folder, a CSV
of file names, an .npz or an .npy of uint8 images). Two things are stored:

  statistics  mean and standard deviation of every layer's pooled feature. Adaptation moves the
              features of a drifted stream back towards them.
  layers      those whose features separate drifted images from source images. 2-means is run at
              every token or position of a layer, and purity says how well the two clusters match
              the two domains (0.5: not at all, 1: perfectly). Feature maps are sampled on a grid
              of at most 8 x 8 positions.

Of the layers whose purity reaches --tau, the deepest --max-layers are chosen, but never the first
layer or the norm before the classifier. Drifted images are those of --ood, or the source images
with speckle noise. Calibrating again replaces what is stored.

--prime also measures how the features respond to the chosen affines, and fits on degraded copies of
the source images how a single image tells what it needs, by forward passes. This takes minutes,
once, and up to 18 % of the file's size; the device then adapts without extra passes. If it is
interrupted, the same command continues where it stopped. A dry run does not prime. Then
the model answers degraded source images, to learn how far its certainty can be believed: the device
estimates its accuracy from that, and notices when adaptation does harm. Labels that lie with the
images are used; without them an answer is right when it is the one to the clean image. Take photos
that the model was not trained on: of those it was, it knows more than of any others, and the
estimate says too much.

Of a primed file, and of every network with BatchNorm or without norms, the moments of all channels
are measured as well, and the ways to adapt are compared on source images that are degraded in six
ways: the one that regains more of the clean images' answers becomes the default.

  zotta-edge calibrate vit_int8.onnx --source photos/
  zotta-edge calibrate vit_int8.onnx --source photos/ --ood rainy/ --plot purity.png
  zotta-edge calibrate vit_int8.onnx --source photos/ --layers 3-5 --prime

--stream takes drifted images from the start of a stream, in its order: those that the model is less
sure of than of three quarters of the source's. Without --source, images that it is sure of stand in
for the source; they are the easy ones, so give a source where there is any. It runs on the device.

  zotta-edge calibrate vit_int8.onnx --stream camera/ --source photos/ --samples 64
"""
_DIGITS = 6  # no network has so many layers
RULES = ("purity", "all", "parameters", "gradient", "influence")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="made by zotta-edge export")
    parser.add_argument(
        "--source",
        metavar="DIR",
        help="images of the source domain; needed unless --stream is given",
    )
    parser.add_argument("--ood", metavar="DIR", help="drifted images; default: speckle noise")
    parser.add_argument(
        "--stream", metavar="DIR", help="find drifted images at the start of this stream"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=256,
        metavar="N",
        help="images of each (default: 256); with fewer, priming is shorter and knows less",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="default: MODEL itself")
    parser.add_argument(
        "--prime",
        action="store_true",
        help="also measure how the features respond to the affines, for --method primed; minutes",
    )
    parser.add_argument(
        "--token-statistics",
        type=Path,
        metavar="NPZ",
        help="also write the covariance of every block's features here, for --method pea",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the table, write nothing")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the purity curve")
    parser.add_argument("--json", action="store_true", help="print the result for machines")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the draw and the noise (default: 0)"
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail on an image that cannot be read"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")
    group = parser.add_argument_group("choice of layers")
    group.add_argument("--layers", metavar="3,4,5", help="choose these without measuring purity")
    group.add_argument("--tau", type=float, default=0.6, help="minimum purity (default: 0.6)")
    group.add_argument(
        "--max-layers",
        type=int,
        default=3,
        metavar="N",
        help="maximum number of layers (default: 3)",
    )
    group.add_argument(
        "--keep-shallow", action="store_true", help="the first layer may be chosen as well"
    )
    group.add_argument(
        "--rule",
        choices=RULES,
        default="purity",
        help="purity (default), or a rule that the paper compares it with: all layers, or those "
        "with the largest parameters, gradients (zeroth-order) or influence on the output",
    )


def run(args: argparse.Namespace) -> int:
    from zotta_edge.calibration.calibrate import Settings, calibrate, store
    from zotta_edge.calibration.comparison import compare_methods, is_plain_cnn
    from zotta_edge.calibration.plot import plot_purity, require_matplotlib
    from zotta_edge.calibration.prime import prime
    from zotta_edge.calibration.reliability import assess
    from zotta_edge.calibration.selection import Choice

    choice = Choice(
        rule=args.rule,
        tau=args.tau,
        max_layers=args.max_layers,
        keep_shallow=args.keep_shallow,
        layers=parse_layers(args.layers),
    )
    if not args.dry_run and args.model.is_file():
        check_writable(args.output or args.model)
    if args.token_statistics:
        check_writable(args.token_statistics)
    if args.plot:
        check_writable(args.plot)
        if choice.layers is not None or choice.rule != "purity":
            raise ZottaError("--plot draws purity: leave --layers and --rule out")
        require_matplotlib(args.plot)
    settings = Settings(choice, args.samples, args.seed, args.strict, args.threads)
    source, ood = _images(args)
    report = calibrate(args.model, source, ood, settings)
    if args.prime and not args.dry_run:
        report = prime(report, source, settings)
    if not args.dry_run and (args.prime or is_plain_cnn(report)):
        report = compare_methods(report, source, settings)
    if args.prime and not args.dry_run:
        report = assess(report, source, settings)
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.token_statistics and not args.dry_run:
        _write_token_statistics(args, source, report.info)
    if args.plot:
        plot_purity(report.info, report.calibration, args.plot)
    written = None if args.dry_run else store(report, args.output)
    print(json.dumps(_machine(report, written), indent=2) if args.json else table(report, written))
    return 0


def _images(args: argparse.Namespace) -> tuple["Source", "Source | None"]:
    """Those of the source, and drifted ones: as given, or from the start of a stream."""
    if args.stream is None:
        if args.source is None:
            raise ZottaError("give --source, images of the source domain, or --stream")
        return args.source, args.ood
    if args.ood is not None:
        raise ZottaError("--stream and --ood both name drifted images: give one of them")
    from zotta_edge.calibration.samples import read_samples
    from zotta_edge.calibration.stream import gather
    from zotta_edge.runtime.engine.model_info import read_info

    info = read_info(args.model)
    known = args.source and read_samples(
        args.source, info.preprocessing, args.samples, args.seed, strict=args.strict
    )
    found = gather(args.model, info, args.stream, args.samples, known or None, args.threads)
    print(f"note: {len(found.drifted)} drifted images among the first {found.looked_at} of "
          f"{args.stream}", file=sys.stderr)  # fmt: skip
    if found.source is None:
        return args.source, found.drifted.images
    print(f"note: {len(found.source)} images that the model is sure of stand in for the source",
          file=sys.stderr)  # fmt: skip
    return found.source.images, found.drifted.images


def _write_token_statistics(args: argparse.Namespace, source: "Source", info: "ModelInfo") -> None:
    from zotta_edge.calibration.samples import read_samples
    from zotta_edge.calibration.tokens import write_token_statistics

    samples = read_samples(source, info.preprocessing, args.samples, args.seed, strict=args.strict)
    images = samples.prepared(info.preprocessing)
    write_token_statistics(args.model, info, images, args.token_statistics, args.threads)


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """`3,4,5` or `3-5`."""
    if text is None:
        return None
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = (first, last) if dash else (first, first)
        known = all(end.isdecimal() and len(end) < _DIGITS for end in ends)
        if not known or int(ends[0]) > int(ends[1]):
            raise ZottaError(f"--layers {text!r} is not a list of layers such as 3,4,5 or 3-5")
        chosen += range(int(ends[0]), int(ends[1]) + 1)
    return tuple(chosen)


def table(report: "Report", written: Path | None) -> str:
    """One line a layer: parameters, score under the rule, and whether it is chosen."""
    calibration, layers = report.calibration, report.info.layers
    score = calibration.rule if report.selection.scores else ""
    name_width = max(len("layer"), *(len(layer.name) for layer in layers))
    rows = [f"{'':>3}  {'layer':<{name_width}}  parameters  {score:>10}  chosen"]
    for index, layer in enumerate(layers):
        value = f"{report.selection.scores[index]:.3f}" if score else ""
        mark = "*" if index in calibration.chosen else ""
        rows.append(
            f"{index:>3}  {layer.name:<{name_width}}  {layer.parameters:>10}  {value:>10}  {mark}"
        )
    return "\n".join([*rows, *_summary(report, written)])


def _summary(report: "Report", written: Path | None) -> list[str]:
    calibration, info = report.calibration, report.info
    moved = sum(info.layers[index].parameters for index in calibration.chosen)
    total = sum(layer.parameters for layer in info.layers)
    forward, clustering = report.selection.seconds
    times = f" (forward passes {forward:.1f} s, clustering {clustering:.1f} s)" if forward else ""
    return [
        f"{moved} of {total} parameters will adapt; rule {calibration.rule}, "
        f"tau {calibration.tau:g}, seed {calibration.seed}",
        f"{calibration.samples} source images {calibration.source[:12]}, "
        f"OOD: {calibration.ood[:40]}; {calibration.seconds:.1f} s{times}",
        *_primed(info),
        *_compared(info),
        *_assessed(info),
        f"stored in {written}" if written else "nothing was written (--dry-run)",
    ]


def _primed(info: "ModelInfo") -> list[str]:
    prime = info.prime
    if prime is None:
        return []
    return [
        f"primed on {prime.images} images: rank {prime.features.shape[1]} keeps "
        f"{prime.energy:.0%} of the Jacobian; {prime.seconds:.0f} s",
        *_signed(info),
    ]


def _signed(info: "ModelInfo") -> list[str]:
    signatures = info.signatures
    if signatures is None:
        return []
    return [
        f"signatures from {signatures.images} images and {signatures.copies} degraded copies of "
        f"each: rank {signatures.inward.shape[1]}; {signatures.seconds:.0f} s"
    ]


def _compared(info: "ModelInfo") -> list[str]:
    from zotta_edge.runtime.methods.contract import MethodSettings
    from zotta_edge.runtime.methods.registry import default_method

    if info.moments is None or not info.moments.gains:
        return []
    gains = ", ".join(f"{name} {gain:+.1f}" for name, gain in info.moments.gains.items())
    best = default_method(info, MethodSettings())
    share = f"a site takes back {info.moments.share:.0%} of a drift"
    return [f"points regained on degraded source images: {gains} ({share}); {best} is the default"]


def _assessed(info: "ModelInfo") -> list[str]:
    known = info.reliability
    if known is None:
        return []
    of = "accuracy" if known.labelled else "agreement with the answers to clean images"
    return [f"estimates its {of} without labels, to {known.error:.1%} on {known.streams} streams"]


def _machine(report: "Report", written: Path | None) -> dict[str, Any]:
    from zotta_edge.format import STATISTICS

    calibration = report.calibration
    plain = {k: v for k, v in vars(calibration).items() if k not in STATISTICS}
    return plain | {
        "model": str(written) if written else None,
        "layers": [
            {
                "index": index,
                "name": layer.name,
                "parameters": layer.parameters,
                "score": report.selection.scores[index] if report.selection.scores else None,
                "chosen": index in calibration.chosen,
            }
            for index, layer in enumerate(report.info.layers)
        ],
        "notes": list(report.notes),
        "gains": dict(report.info.moments.gains) if report.info.moments else None,
    }
