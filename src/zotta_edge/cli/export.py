"""`zotta-edge export`"""

import argparse
import sys
from pathlib import Path
from typing import Any

from zotta_edge.errors import ZottaError
from zotta_edge.files import read_text
from zotta_edge.presets import PRESETS

_OF_CLASSIFIERS = (
    *("weights", "random_weights", "data", "labels", "classes", "fold", "input"),
    *("preprocessing", "mean", "std", "bgr", "resize", "interpolation"),
)

HELP = """Turn a classifier into one adaptable ONNX file

SOURCE is one of
  model.onnx                  any ONNX classifier, from any exporter, fp32 or already quantized
  vit_tiny_patch16_224        an architecture of zotta-edge (--list shows them), with --weights
  package.module:factory      a function that returns a torch module, with or without --weights
  timm:NAME                   a timm model with its own weights, where timm is installed
  model.gguf, model.bin       a decoder (Llama, Qwen2): GGUF, or llama2.c with its tokenizer.bin
  FOLDER                      a decoder of transformers: Llama, Qwen2, Qwen2.5-VL (with --size)
  model.onnx                  a decoder with past_key_values.*, by optimum or onnxruntime-genai

The exported file runs in any ONNX tool with `image` as its only input. In addition, the scale and
shift of every norm are optional inputs, and the pooled feature of every layer is an output. Where
the network has no norms (BatchNorm was folded), affines are inserted behind the last convolution of
each block, or behind those that --layers names; where it is quantized, its integers stay. It is
checked before it is written: the same logits as the source, every affine has an effect, quantized
logits close to fp32 ones at the source affines and at perturbed ones.

Few files say how their images are normalised. With --data, and no --preprocessing, export tries the
usual ways and takes the one in which the model's answers hold most information about the images
and, where labels are known, are right most often. It says how sure that is, and so does `inspect`.

  zotta-edge export deit_tiny.onnx -o deit_int8.onnx --preprocessing imagenet --data photos/
  zotta-edge export deit_tiny.onnx -o deit_int8.onnx --data photos/
"""

_LARGEST = 10**6  # side of an image


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="what to export (see above)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the .onnx to write")
    parser.add_argument("--list", action="store_true", help="list the named architectures")
    parser.add_argument(
        "--precision",
        choices=("int4", "int8", "fp8", "fp32"),
        default="int8",
        help="default: int8; int4: a decoder's 4-bit weights stay, and others get 8 bits",
    )
    parser.add_argument(
        "--target",
        choices=("auto", "avx2", "vnni", "arm64"),
        default="auto",
        help="the CPU that will run the model; auto: this one. AVX2 without VNNI saturates on "
        "8-bit weights, so it gets 7-bit ones",
    )
    parser.add_argument("--weights", type=Path, metavar="FILE", help="a .pth or .safetensors")
    parser.add_argument(
        "--random-weights", action="store_true", help="seeded random weights instead of --weights"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="images for the checks, for recipes that need them, and to find the preprocessing",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="CSV",
        help="name,label lines for the images of --data (default: what lies with them)",
    )
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="class names, one a line, in order"
    )
    parser.add_argument(
        "--layers",
        metavar="REGEX",
        help=r"group norms into layers by what this matches in their names, e.g. 'blocks\.\d+'",
    )
    parser.add_argument(
        "--fold",
        action="store_true",
        help="fold BatchNorms into the convolutions before them, and insert an affine a block "
        "instead: for a file that other runtimes, too, are to run quickly",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of an input besides the image: a number, or as many as it has elements",
    )
    parser.add_argument(
        "--no-scores",
        dest="scores",
        action="store_false",
        help="the output is no class scores, although it is [batch, N], as an embedding is: it is "
        "passed through, and only features are adapted (other outputs always are)",
    )
    group = parser.add_argument_group(
        "preprocessing", "(pixel / 255 - mean) / std after resize and centre crop"
    )
    group.add_argument(
        "--preprocessing",
        choices=sorted(PRESETS),
        help="a usual one: imagenet, half (-1 to 1), none (0 to 1), raw (0 to 255), caffe (BGR, 0 "
        "to 255 minus ImageNet's mean)",
    )
    group.add_argument("--mean", metavar="R,G,B", help="e.g. 0.485,0.456,0.406")
    group.add_argument("--std", metavar="R,G,B", help="e.g. 0.229,0.224,0.225")
    group.add_argument("--bgr", action="store_true", help="channels in the order blue, green, red")
    group.add_argument("--size", metavar="N|HxW", help="input size, where the source has none")
    group.add_argument("--resize", type=int, metavar="N", help="shorter side before the crop")
    group.add_argument("--interpolation", choices=("bicubic", "bilinear", "area"))


def run(args: argparse.Namespace) -> int:
    if args.list:
        from zotta_edge.models.registry import ARCHITECTURES

        print("\n".join(ARCHITECTURES))
        return 0
    if args.source is None or args.output is None:
        raise ZottaError("export needs SOURCE and -o FILE: see `zotta-edge export --help`")
    if args.output.exists() and Path(args.source).exists() and args.output.samefile(args.source):
        raise ZottaError(f"{args.output} would take the place of its own source: name another -o")
    from zotta_edge.export.decoders.sources import names_decoder

    if names_decoder(args.source):
        return _export_decoder(args)
    from zotta_edge.export.inspect import checks_table, summary
    from zotta_edge.export.pipeline import ExportOptions, export_model

    images, names = _labels(args)
    options = ExportOptions(
        precision=args.precision,
        target=args.target,
        weights=args.weights,
        random_weights=args.random_weights,
        data=args.data,
        image_labels=images,
        labels=_class_names(names),
        layers=args.layers,
        fold=args.fold,
        scores=args.scores,
        size=_size(args.size),
        inputs=dict(map(_input, args.input)),
        resize=args.resize,
        interpolation=args.interpolation,
        **_statistics(args),
    )
    info = export_model(args.source, args.output, options, say=_say)
    print(summary(args.output, info))
    print(checks_table(info))
    return 0


def _export_decoder(args: argparse.Namespace) -> int:
    from zotta_edge.export.decoders.inspect import decoder_summary
    from zotta_edge.export.decoders.pipeline import DecoderOptions
    from zotta_edge.export.decoders.sources import export_any_decoder
    from zotta_edge.export.inspect import describe

    if given := [name for name in _OF_CLASSIFIERS if getattr(args, name)]:
        flag = given[0].replace("_", "-")
        raise ZottaError(f"--{flag} is for classifiers, {args.source} is a decoder: leave it out")
    options = DecoderOptions(args.precision)
    if args.layers:
        options = DecoderOptions(args.precision, args.layers)
    size = _size(args.size)
    export_any_decoder(args.source, args.output, options, size, _say)
    print(decoder_summary(describe(args.output)))
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _statistics(args: argparse.Namespace) -> dict[str, Any]:
    mean, std, order = PRESETS.get(args.preprocessing, (None, None, None))
    return {
        "mean": _floats(args.mean, "--mean") or mean,
        "std": _floats(args.std, "--std") or std,
        "order": "BGR" if args.bgr else order,
    }


def _input(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, value = text.rpartition("=")
    numbers = _floats(value, f"--input {name}") if name else None
    if not numbers:
        raise ZottaError(f"--input {text!r} is not of the form NAME=VALUE, such as scale=1.0")
    return name, numbers


def _floats(text: str | None, flag: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise ZottaError(f"{flag} {text!r} is not a list of numbers such as 0.5,0.5,0.5") from error


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(
        part.isdecimal() and 0 < int(part[:9]) < _LARGEST for part in parts
    ):
        raise ZottaError(f"--size {text!r} is not a size such as 224 or 224x320")
    return int(parts[0]), int(parts[-1])


def _labels(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """The files of the images' labels and of the class names; a --labels .txt once meant these."""
    if args.labels is None or args.labels.suffix.lower() in (".csv", ".npy"):
        return args.labels, args.classes
    if args.classes:
        raise ZottaError(f"--labels {args.labels} is no .csv or .npy of the images' labels")
    return None, args.labels


def _class_names(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = read_text(path, f"the class names in {path}").splitlines()
    return tuple(line.strip() for line in lines if line.strip())
