"""The paper's figures in kind, each by a command; the numbers are printed, --plot draws them.

python benchmarks/figures.py features --model deit_int8.onnx --source photos/ --data imagenet-val/ \
    --corruption gaussian_noise --plot features.png
python benchmarks/figures.py gradients --model deit_int8.onnx --source photos/ \
    --data imagenet-val/ --reference deit_tiny.pth --plot gradients.png
python benchmarks/figures.py passes --results out/results.json --plot passes.png
python benchmarks/figures.py purity --model deit_int8.onnx rn26_int8.onnx --plot purity.png

features   pooled features of every layer before and after ZOTTA has adapted: how pure two clusters
           are of source and drifted images, and where they lie in the plane of largest variance,
           the same for both
gradients  length, and cosine with torch's gradient, of naive ZOO's estimate and of ours, along a
           stream
passes     accuracy against forward passes, from the results of `past_the_paper.py passes`
purity     clustering purity by layer as calibration stored it (with --rule purity); that of random
           weights says nothing about a trained network
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.calibration.plot import require_matplotlib
from zotta_edge.calibration.purity import position_purity, two_means
from zotta_edge.calibration.samples import read_samples
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.watch.statistics import Doubles
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.parameters import Parameters

SHOWN = 128  # images of either domain


@dataclass(frozen=True)
class Panel:
    """One drawing: lines or points by name."""

    title: str
    axes: tuple[str, str]
    series: dict[str, tuple[Sequence[float], Sequence[float]]]
    style: str = "-"


def features(args: argparse.Namespace) -> list[Panel]:
    engine = Engine.open(args.model[0])
    info, parameters = engine.info, Parameters(engine.info, engine.chosen)
    model = AdaptiveModel.load(args.model[0], Settings(always=True), "zotta")
    clean = read_samples(args.source, info.preprocessing, SHOWN, seed=0).images
    stream = list(_stream(args, info.preprocessing))
    for images in stream:
        model.predict_prepared(images)
    both = np.concatenate(
        [prepare(clean, info.preprocessing), np.concatenate(stream)[: len(clean)]]
    )
    drifted = np.arange(len(both)) >= len(clean)
    theta = np.asarray(model.arrays()["method.theta"], np.float32)
    panels: list[Panel] = []
    print(f"{model.status()['steps']} updates\n")
    print("| layer | purity before | after |\n| --- | --- | --- |")
    found = [_features(engine, parameters, both, at) for at in (parameters.source, theta)]
    for index, layer in enumerate(info.layers):
        purities = [_purity(own[index], drifted) for own in found]
        print(f"| {layer.name} | {purities[0]:.3f} | {purities[1]:.3f} |")
        planes = np.split(_plane(np.concatenate([own[index] for own in found])), 2)
        for when, plane in zip(("before", "after"), planes, strict=True):
            series = {
                name: (plane[rows, 0].tolist(), plane[rows, 1].tolist())
                for name, rows in (("source", ~drifted), ("drifted", drifted))
            }
            panels.append(Panel(f"{layer.name}, {when}", ("", ""), series, "."))
    return panels


def _features(
    engine: Engine, parameters: Parameters, images: Floats, theta: Floats
) -> list[Floats]:
    passes = [
        Batch.of(engine, parameters, images[start : start + 32])(theta).features
        for start in range(0, len(images), 32)
    ]
    return [np.concatenate(layer) for layer in zip(*passes, strict=True)]


def _purity(rows: Floats, drifted: "np.ndarray[Any, np.dtype[np.bool_]]") -> float:
    clusters = two_means(np.ascontiguousarray(rows[None]), np.random.default_rng(0))
    return float(position_purity(clusters, drifted)[0])


def _plane(rows: Floats) -> Doubles:
    """The two directions of largest variance."""
    centred = rows.astype(np.float64) - rows.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    plane: Doubles = left[:, :2] * sizes[:2]
    return plane


def gradients(args: argparse.Namespace) -> list[Panel]:
    """At the thetas that each method itself goes through."""
    lengths, cosines = {}, {}
    for name in ("zoo", "zotta"):
        found = np.array(list(_along(args, name)))  # [batch, ours / torch's length, cosine]
        batches = range(1, len(found) + 1)
        lengths |= {name: (batches, found[:, 0]), f"{name}, torch": (batches, found[:, 1])}
        cosines[name] = (batches, found[:, 2])
        print(f"{name}: {len(found)} batches, length {_spread(found[:, 0])} (torch "
              f"{_spread(found[:, 1])}), cosine {_spread(found[:, 2])}")  # fmt: skip
    return [
        Panel("gradient norm", ("batch", "|g|"), lengths),
        Panel("cosine with torch's", ("batch", "cosine"), cosines),
    ]


def _spread(values: Doubles) -> str:
    return f"{values.mean():.4g} ± {values.std():.2g}"


def _along(args: argparse.Namespace, name: str) -> Iterator[tuple[float, float, float]]:
    import torch

    from zotta_edge.bench.references import Network
    from zotta_edge.bench.references.backprop import Backprop
    from zotta_edge.bench.references.backprop import Settings as Weights
    from zotta_edge.bench.run.fp32 import build_module

    model = AdaptiveModel.load(args.model[0], Settings(always=True), name)
    method: Any = model._method
    info, parameters = model.info, method._parameters
    source = read_samples(args.source, info.preprocessing, 256, seed=0)
    weights = _weights(method, args.batch_size)
    network = Network(build_module(args.reference), _chosen(info, model._engine.chosen))
    reference = Backprop(network, source.prepared(info.preprocessing), settings=Weights(*weights))
    rng = np.random.default_rng(args.seed)
    for images in _stream(args, info.preprocessing):
        theta = np.asarray(method._theta, np.float32)
        ends = np.cumsum([value.numel() for value in reference.learner.parameters])[:-1]
        with torch.no_grad():
            for value, part in zip(
                reference.learner.parameters, np.split(theta, ends), strict=True
            ):
                value.copy_(torch.from_numpy(part.copy()).reshape(value.shape))
        logits, pooled = network.outputs(torch.from_numpy(images))
        reference.learner.backward(reference.loss(logits, pooled), len(images))
        true = torch.cat([v.grad.flatten() for v in reference.learner.parameters]).double().numpy()
        batch = Batch.of(model._engine, parameters, images)
        size = Settings().perturbation
        estimate = method._estimator(batch, theta, method._objective, size, rng).gradient
        ours, theirs = float(np.linalg.norm(estimate)), float(np.linalg.norm(true))
        yield ours, theirs, float(estimate @ true / (ours * theirs))
        model.predict_prepared(images)


def _weights(method: Any, batch: int) -> tuple[float, float]:
    """Of the mean entropy and of SFAA, as the method's own objective has them."""
    objective = method._objective
    if not hasattr(objective, "alignment_weight"):
        return 1.0, 0.0
    whole = objective.reduction == "whole"
    return objective.entropy_weight, objective.alignment_weight / (batch if whole else 1)


def _chosen(info: Any, layers: Sequence[int]) -> Any:
    """The same file as if calibration had chosen these layers."""
    from dataclasses import replace

    return info.with_calibration(replace(info.calibration, chosen=tuple(layers)))


def passes(args: argparse.Namespace) -> list[Panel]:
    points: dict[str, list[tuple[float, float]]] = {}
    for one in json.loads(args.results.read_text())["summaries"]:
        family = one["variant"].split("-")[0]
        points.setdefault(family, []).append((one["passes"], float(np.mean(one["mean"]))))
        print(f"| {one['variant']} | {one['passes']:.2f} | {np.mean(one['mean']):.1f} |")
    series = {
        family: ([x for x, _ in sorted(own)], [y for _, y in sorted(own)])
        for family, own in points.items()
    }
    return [Panel("", ("forward passes an image", "accuracy, %"), series, "o-")]


def purity(args: argparse.Namespace) -> list[Panel]:
    series = {}
    for path in args.model:
        calibration = read_info(path).calibration
        if calibration is None or not calibration.purity:
            raise ZottaError(f"{path} holds no purity: run zotta-edge calibrate without --layers")
        values = list(calibration.purity)
        series[path.stem] = (list(range(len(values))), values)
        print(f"| {path.stem} | {' | '.join(f'{value:.3f}' for value in values)} |")
    return [Panel("clustering purity", ("layer", "purity"), series, "o-")]


def _stream(args: argparse.Namespace, preprocessing: Any) -> Iterator[Floats]:
    """The data's images in order, corrupted, in batches."""
    from zotta_edge.runtime.io.sources import batches, open_source

    for index, samples in enumerate(batches(open_source(args.data), args.batch_size)):
        if index * args.batch_size >= args.images:
            return
        images = [sample.image for sample in samples]
        seed = 10_000 * args.seed + index
        yield prepare(corrupt_batch(images, args.corruption, args.severity, seed), preprocessing)


def draw(panels: Sequence[Panel], path: Path) -> None:
    require_matplotlib(path)
    from matplotlib.figure import Figure

    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.8 * rows), layout="constrained")
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, place)
        for name, (x, y) in panel.series.items():
            axes.plot(x, y, panel.style, label=name, markersize=3)
        axes.set(title=panel.title, xlabel=panel.axes[0], ylabel=panel.axes[1])
        if place == 1 or len(panels) < 3:
            axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=130)


FIGURES = {"features": features, "gradients": gradients, "passes": passes, "purity": purity}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--model", type=Path, nargs="+", default=[])
    parser.add_argument("--source", help="clean images")
    parser.add_argument("--data", help="images to corrupt")
    parser.add_argument("--reference", type=Path, help="the model's checkpoint, for torch")
    parser.add_argument("--results", type=Path, help="results.json of a bench run")
    parser.add_argument("--corruption", default="gaussian_noise")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--images", type=int, default=512, help="of the stream")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    args = parser.parse_args(arguments)
    if args.plot:
        require_matplotlib(args.plot)
    panels = FIGURES[args.figure](args)
    if args.plot:
        draw(panels, args.plot)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ZottaError as error:
        raise SystemExit(f"error: {error}") from None
