"""Clustering purity and source statistics on real models: the tables behind the choice of layers.

    python benchmarks/purity.py --data ../shared/data > purity.md

Needs the `export` extra. Exports DeiT-Ti and a CIFAR-10 ResNet26-GN at every precision, then prints
Markdown: purity by layer and precision, spread over seeds, what fewer samples change, how far the
quantized statistics lie from fp32 ones, and what it costs in time and memory.
"""

import argparse
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import sklearn

from zotta_edge.calibration.calibrate import Report, Settings, calibrate, store
from zotta_edge.calibration.purity import layer_purities
from zotta_edge.calibration.samples import read_samples
from zotta_edge.calibration.selection import Choice
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import Floats, Precision
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.memory import with_peak

SEEDS = range(5)
SIZES = (8, 16, 32, 64, 128)
REFERENCE = 1024  # images behind the statistics that smaller samples are compared with
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8", "fp8")
GIVEN = Choice(layers=(0,))  # statistics alone


@dataclass(frozen=True)
class Case:
    title: str
    architecture: str
    weights: str
    images: str


CASES = (
    Case(
        "DeiT-Ti, ImageNet",
        "deit_tiny_patch16_224",
        "deit-tiny/deit_tiny_patch16_224.pth",
        "imagenet-val-2000",
    ),
    Case(
        "ResNet26-GN, CIFAR-10",
        "cifar10_resnet26_gn",
        "cifar10-rn26-gn/cifar10_rn26_gn.pth",
        "cifar10_test_5000.npz",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of models and images")
    parser.add_argument("--quick", action="store_true", help="two seeds, no reference of 1,024")
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak_of:
        print(peak_of_one_run(args.peak_of, args.data))
        return
    print(f"# Clustering purity and source statistics\n\n{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            models = export(case, args.data, Path(folder))
            for section in study(case, models, args.data / case.images, args.quick):
                print(section, flush=True)
        print(memory(args.data, Path(folder)))


def machine() -> str:
    return (
        f"{platform.machine()}, {platform.system()}, onnxruntime {onnxruntime.__version__}, "
        f"scikit-learn {sklearn.__version__}, numpy {np.__version__}; "
        "OOD: speckle noise, severity 3"
    )


def export(case: Case, data: Path, folder: Path) -> dict[Precision, Path]:
    models = {p: folder / f"{case.architecture}_{p}.onnx" for p in PRECISIONS}
    for precision, path in models.items():
        options = ExportOptions(
            precision, weights=data / case.weights, data=str(data / case.images)
        )
        export_model(case.architecture, path, options)
    return models


def study(case: Case, models: dict[Precision, Path], images: Path, quick: bool) -> Iterator[str]:
    yield f"## {case.title}\n"
    seeds = list(SEEDS)[: 2 if quick else None]
    runs = {
        precision: [calibrate(path, images, settings=Settings(seed=seed)) for seed in seeds]
        for precision, path in models.items()
    }
    yield by_precision(runs)
    yield by_seed(runs)
    yield quantized_statistics(runs)
    yield by_samples(models["int8"], images, seeds[:3], 256 if quick else REFERENCE)
    yield cost(models["int8"], images)


def by_precision(runs: dict[Precision, list[Report]]) -> str:
    """Mean and spread of P_l over the seeds."""
    layers = runs["fp32"][0].info.layers
    purity = {p: np.array([r.calibration.purity for r in reports]) for p, reports in runs.items()}
    rows = [
        [layer.name, *(f"{v[:, i].mean():.3f} ± {v[:, i].std():.3f}" for v in purity.values())]
        for i, layer in enumerate(layers)
    ]
    count = len(runs["fp32"])
    title = f"Purity, 64 + 64 images, mean ± standard deviation over {count} seeds:"
    return table(title, ["layer", *purity], rows)


def by_seed(runs: dict[Precision, list[Report]]) -> str:
    rows = [
        [reports[0].calibration.seed, *(chosen(report) for report in reports)]
        for reports in zip(*runs.values(), strict=True)
    ]
    same = sum(len(set(row[1:])) == 1 for row in rows)
    title = (
        f"Layers chosen; all precisions agree for {same} of {len(rows)} seeds "
        "(*: none reaches tau, the purest is taken):"
    )
    return table(title, ["seed", *runs], rows)


def quantized_statistics(runs: dict[Precision, list[Report]]) -> str:
    """How far INT8's and FP8's statistics lie from fp32's on the same images."""
    rows = []
    for i, layer in enumerate(runs["fp32"][0].info.layers):
        cells = []
        for precision in ("int8", "fp8"):
            pairs = list(zip(runs[precision], runs["fp32"], strict=True))
            cells += [np.mean([f(a, b, i) for a, b in pairs]) for f in (mean_shift, std_shift)]
        rows.append([layer.name, *(f"{cell:.4f}" for cell in cells)])
    title = (
        "Statistics of the quantized model against fp32, same 64 images "
        "(root mean square over channels, in units of sigma):"
    )
    return table(title, ["layer", "int8 mu", "int8 sigma", "fp8 mu", "fp8 sigma"], rows)


def mean_shift(found: Report, reference: Report, layer: int) -> float:
    a, b = found.calibration, reference.calibration
    return relative(a.mean[layer] - b.mean[layer], b.std[layer])


def std_shift(found: Report, reference: Report, layer: int) -> float:
    a, b = found.calibration, reference.calibration
    return relative(a.std[layer] - b.std[layer], b.std[layer])


def relative(difference: Floats, scale: Floats) -> float:
    return float(np.linalg.norm(difference) / np.linalg.norm(scale))


def by_samples(model: Path, images: Path, seeds: Sequence[int], reference: int) -> str:
    """What fewer or more source samples change, on INT8."""
    many = calibrate(model, images, settings=Settings(GIVEN, samples=reference, seed=99))
    layers = range(len(many.info.layers))
    rows = []
    for size in SIZES:
        runs = [calibrate(model, images, settings=Settings(samples=size, seed=s)) for s in seeds]
        mean = np.mean([mean_shift(run, many, layer) for run in runs for layer in layers])
        std = np.mean([std_shift(run, many, layer) for run in runs for layer in layers])
        choices = ", ".join(chosen(run) for run in runs)
        rows.append([size, f"{mean:.3f}", f"{std:.3f}", choices])
    title = (
        f"Source samples (int8, seeds {', '.join(map(str, seeds))}): distance of the statistics "
        f"from those of {reference} images, in units of sigma, and the layers chosen:"
    )
    return table(title, ["samples", "mu", "sigma", "chosen"], rows)


def cost(model: Path, images: Path) -> str:
    """Forward passes against clustering, best of three in the same process."""
    info = read_info(model)
    source = read_samples(images, info.preprocessing, 128, seed=0).prepared(info.preprocessing)
    found = [layer_purities(model, info, source[:64], source[64:]).seconds for _ in range(3)]
    forward, clustering = (min(times) for times in zip(*found, strict=True))
    return (
        f"Time for 64 + 64 images (int8, best of 3): forward passes {forward:.2f} s, "
        f"clustering {clustering:.2f} s, ratio {clustering / forward:.2f}\n"
    )


def memory(data: Path, folder: Path) -> str:
    """Peak memory of one whole calibration of ViT-Base, in a process of its own."""
    path = folder / "vit_base_int8.onnx"
    export_model("vit_base_patch16_224", path, ExportOptions(random_weights=True))
    command = [sys.executable, __file__, "--data", str(data), "--peak-of", str(path)]
    peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return f"## Memory\n\nViT-Base INT8 (random weights), 64 + 64 images: peak {peak} MB\n"


def peak_of_one_run(model: Path, data: Path) -> int:
    """In MB; getrusage would count the peak of the process that started this one."""
    _, peak = with_peak(lambda: store(calibrate(model, data / CASES[0].images), model))
    return round((peak or 0) / 2**20)


def chosen(report: Report) -> str:
    layers = "+".join(str(index) for index in report.calibration.chosen)
    return layers + ("*" if report.selection.note else "")


def table(title: str, header: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    body = "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
    return f"{title}\n\n{body}\n"


if __name__ == "__main__":
    main()
