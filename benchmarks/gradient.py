"""How well each way of adapting knows the gradient: its cosine with what torch back-propagates.

python benchmarks/gradient.py --model deit_int8.onnx --reference deit_tiny.pth \
    --data imagenet-val/ --source photos/

The loss is SFAA's, at the source's affines, on one corrupted batch. The estimates run on the
quantized file, the gradient on the fp32 network. Over all chosen affines; `shifts` over those that
primed alignment moves.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from zotta_edge.bench.references import Network
from zotta_edge.bench.references.backprop import Backprop
from zotta_edge.bench.run.fp32 import SOURCE_IMAGES, build_module
from zotta_edge.calibration.samples import read_samples
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.io.sources import batches, open_source
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.statistics import Doubles, Queue, Source, pooled
from zotta_edge.runtime.zeroth.estimator import PerSample, SharedDirections
from zotta_edge.runtime.zeroth.forward import Batch
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment
from zotta_edge.runtime.zeroth.parameters import Parameters

ESTIMATORS = {
    "Eq. 2, 2 passes": SharedDirections(1),
    "Eq. 2, 10 passes": SharedDirections(5),
    "per sample, 2 passes": PerSample(1),
}
PRIMED = "J^T r, no pass of its own"


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    engine = Engine.open(args.model)
    info, calibration, prime = engine.info, engine.info.calibration, engine.info.prime
    if calibration is None or prime is None:
        raise SystemExit(f"{args.model} is not primed: run zotta-edge calibrate --prime first")
    parameters = Parameters(info, engine.chosen)
    source = Source.of(calibration)
    objective = EntropyAndAlignment(source, 0.0, 1.0, "mean", Queue(1, len(source.mean)))
    first, size = min(prime.layers), Settings().perturbation
    samples = read_samples(args.source, info.preprocessing, SOURCE_IMAGES, seed=0)
    reference = Backprop(
        Network(build_module(args.reference), info), samples.prepared(info.preprocessing)
    )
    clean = [sample.image for sample in next(batches(open_source(args.data), args.batch_size))]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ESTIMATORS, PRIMED)}
    for corruption in args.corruptions.split(","):
        images = prepare(corrupt_batch(clean, corruption), info.preprocessing)
        truth = true_gradient(reference, images)
        batch, theta = Batch.of(engine, parameters, images), parameters.source
        for name, estimate in ESTIMATORS.items():
            for seed in range(args.seeds):
                rng = np.random.default_rng(seed)
                given = estimate(batch, theta, objective, size, rng).gradient
                found[name].append(cosines(given, truth, parameters))
        offset = pooled(batch(theta), first).mean(axis=0) - Source.of(calibration, first).mean
        given = np.zeros_like(theta)
        given[parameters.shifts] = prime.shifts @ (prime.features.T @ offset.astype(np.float32))
        found[PRIMED].append(cosines(given, truth, parameters))
        print(f"{corruption}: {PRIMED} {found[PRIMED][-1][0]:.2f}", flush=True)
    print(f"\n| {len(parameters)} affines, batch {args.batch_size} | cosine | shifts |")
    print("| --- | --- | --- |")
    for name, pairs in found.items():
        (all_, shifts), (least, _) = np.mean(pairs, axis=0), np.min(pairs, axis=0)
        print(f"| {name} | {all_:.3f} (least {least:.3f}) | {shifts:.3f} |")


def true_gradient(reference: Backprop, images: Floats) -> Doubles:
    """dL/dtheta of the alignment loss, in theta's order."""
    logits, features = reference.network.outputs(torch.from_numpy(images))
    reference.learner.backward(reference.loss(logits, features), len(images))
    parts = [value.grad for value in reference.learner.parameters]
    return torch.cat([part.flatten() for part in parts if part is not None]).double().numpy()


def cosines(estimate: Floats, truth: Doubles, parameters: Parameters) -> tuple[float, float]:
    """Over all of theta, and over its shifts."""
    shifts = parameters.shifts
    return cosine(estimate, truth), cosine(estimate[shifts], truth[shifts])


def cosine(one: Floats, other: Doubles) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="primed")
    parser.add_argument("--reference", type=Path, required=True, help="its checkpoint, for torch")
    parser.add_argument("--data", required=True, help="images to corrupt")
    parser.add_argument("--source", required=True, help="clean images, for the fp32 statistics")
    parser.add_argument("--corruptions", default="gaussian_noise,defocus_blur,fog,contrast")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    return parser


if __name__ == "__main__":
    try:
        main()
    except ZottaError as error:
        raise SystemExit(f"error: {error}") from None
