"""Priming: the Jacobian that spares the device its perturbations, measured once and stored thin."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from zotta_edge.calibration.calibrate import CORRUPTION, Report, Settings
from zotta_edge.calibration.jacobian import GROUP, Jacobian, measure
from zotta_edge.calibration.samples import Source, read_samples
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing, sha256
from zotta_edge.format import Floats, ModelInfo, Prime
from zotta_edge.progress import Progress
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import mirrored

PERTURBATION = 0.03  # c: below 0.02 an INT8 model's rounding shows, at 0.04 fp32 is still linear
SEVERITY = 5  # of the noise on every other sweep: J must hold where the stream is, too
SWEEPS = 8  # through all directions, a group of images each
SHARE = 0.14  # of the file's size, at most
_BYTES = 4 / 3  # one in base64


def prime(report: Report, source: Source, settings: Settings, sweeps: int = SWEEPS) -> Report:
    """Measure J of the calibrated layers with forward passes of the quantized model itself.

    What is measured survives an interruption beside the model, and the same call goes on from it.
    """
    started, info = time.perf_counter(), report.info
    chosen = report.calibration.chosen
    if not any(info.layers[index].norms for index in chosen):
        raise ZottaError("the chosen layers have no affines to prime: choose others with --layers")
    groups = _groups(source, info, settings, sweeps)
    engine = Engine.open(report.model, chosen=chosen, threads=settings.threads)
    Head.open(engine).weights()  # refuses, before the work, what the method would refuse after it
    shifts = sum(info.layers[index].parameters for index in chosen) // 2
    with (
        _kept(report, groups, settings) as (start, keep),
        Progress("priming", shifts * sweeps) as progress,
    ):
        jacobian = measure(
            engine,
            groups,
            PERTURBATION,
            settings.seed,
            start=start,
            finished=keep,
            progress=progress.advance,
        )
    left, right, energy = thin(jacobian.mean, _rank(report.model, jacobian.mean))
    done = Prime(
        features=left,
        shifts=right,
        layers=chosen,
        images=sum(len(group) for group in groups),
        perturbation=PERTURBATION,
        energy=energy,
        mirrored=_mirrored(engine, groups[::2]),
        seconds=round(time.perf_counter() - started, 3),
    )
    return replace(report, info=replace(info, prime=done))


def thin(jacobian: Floats, rank: int) -> tuple[Floats, Floats, float]:
    """J = left right^T by its largest singular values, and the share of |J|^2 they keep."""
    from sklearn.utils.extmath import randomized_svd

    u, s, vt = randomized_svd(jacobian, rank, n_iter=4, random_state=0)
    half = np.sqrt(s)
    energy = float(np.square(s).sum() / np.square(jacobian).sum())
    return (u * half).astype(np.float32), (vt.T * half).astype(np.float32), round(energy, 4)


def _rank(model: Path, jacobian: Floats) -> int:
    size, former = float(model.stat().st_size), read_info(model).prime
    if former:
        size -= _BYTES * (former.features.size + former.shifts.size)
    affordable = int(SHARE * size / (_BYTES * sum(jacobian.shape)))
    return int(max(1, min(affordable, *jacobian.shape)))


def _mirrored(engine: Engine, groups: list[Floats]) -> float:
    """How often the model says the same of an image and of its mirror image."""
    same = 0
    for images in groups:
        both = (images, mirrored(images, engine.info.preprocessing))
        seen, other = (engine.cone(engine.stem(side), {}).logits.argmax(axis=1) for side in both)
        same += int((seen == other).sum())
    return round(same / sum(map(len, groups)), 4)


def _groups(source: Source, info: ModelInfo, settings: Settings, sweeps: int) -> list[Floats]:
    """Source images as they are, and with noise, in turns; all of them before any comes twice."""
    samples = read_samples(
        source, info.preprocessing, GROUP * sweeps, settings.seed, strict=settings.strict
    )
    index = np.arange(GROUP * sweeps) % len(samples)
    groups = []
    for number, part in enumerate(np.split(index, sweeps)):
        images = samples.images[part]
        if number % 2:
            images = np.asarray(corrupt_batch(images, CORRUPTION, SEVERITY, settings.seed))
        groups.append(replace(samples, images=images).prepared(info.preprocessing))
    return groups


@contextmanager
def _kept(
    report: Report, groups: list[Floats], settings: Settings
) -> Iterator[tuple[Jacobian | None, Callable[[Jacobian], None]]]:
    """Finished sweeps on disk, until all are done: named by all that they depend on."""
    key = hashlib.sha256(sha256(report.model).encode())
    key.update(repr((report.calibration.chosen, PERTURBATION, settings.seed)).encode())
    for group in groups:
        key.update(group.tobytes())
    path = report.model.with_name(f".{report.model.stem}.{key.hexdigest()[:16]}.priming.npz")
    start = None
    with suppress(OSError, ValueError, KeyError, EOFError), np.load(path) as kept:
        start = Jacobian(kept["sum"], int(kept["sweeps"]))

    def keep(so_far: Jacobian) -> None:
        # A folder that cannot be written to only costs the resuming.
        with suppress(ZottaError), replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, sum=so_far.sum, sweeps=so_far.sweeps)

    yield start, keep
    path.unlink(missing_ok=True)
