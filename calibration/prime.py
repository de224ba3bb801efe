"""Priming: the Jacobian that spares the device its perturbations, measured once and stored thin."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zotta_edge.calibration.calibrate import CORRUPTION, Report, Settings
from zotta_edge.calibration.jacobian import GROUP, Jacobian, measure
from zotta_edge.calibration.samples import Source, read_samples
from zotta_edge.calibration.sign import BYTES, Signing, unprimed_size
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing, sha256
from zotta_edge.format import Floats, ModelInfo, Prime
from zotta_edge.progress import Progress
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.head import Head
from zotta_edge.runtime.io.preprocessing import mirrored

PERTURBATION = 0.03  # c: below 0.02 an INT8 model's rounding shows, at 0.04 fp32 is still linear
SEVERITY = 5  # of the noise on every other sweep: J must hold where the stream is, too
SWEEPS = 4  # through all directions, a group of images each, of as many images as are usual
SHARE = 0.14  # of the file's size, at most...
ALL = 0.18  # ...and together with the signatures
OVERSAMPLED, ITERATIONS = 10, 4  # of the thin SVD: directions beyond the rank, rounds


def prime(report: Report, source: Source, settings: Settings) -> Report:
    """Measure J of the calibrated layers with forward passes of the quantized model itself.

    Then fit the signatures by which single images tell what they need (calibration/signatures.py).

    What is measured survives an interruption beside the model, and the same call goes on from it.
    """
    started, info = time.perf_counter(), report.info
    chosen = report.calibration.chosen
    if not any(info.layers[index].norms for index in chosen):
        raise ZottaError("the chosen layers have no affines to prime: choose others with --layers")
    groups = _groups(source, info, settings, settings.part_of(SWEEPS))
    engine = Engine.open(report.model, chosen=chosen, threads=settings.threads)
    if not info.outputs:  # refuses, before the work, what the method would refuse after it
        Head.open(engine).weights()
    signing = Signing(engine, report, source, settings)
    with _kept(report, groups, settings) as kept:
        jacobian = _measured(engine, groups, settings.seed, kept)
        done = _prime(engine, report, groups, jacobian, signing.bytes)
        done = replace(done, seconds=round(time.perf_counter() - started, 3))
        signatures = signing.signatures(done)
    return replace(report, info=replace(info, prime=done, signatures=signatures))


def _prime(
    engine: Engine, report: Report, groups: list[Floats], jacobian: Jacobian, signed: int
) -> Prime:
    left, right, energy = thin(jacobian.mean, _rank(report.model, jacobian.mean, signed))
    return Prime(
        features=left,
        shifts=right,
        layers=report.calibration.chosen,
        images=sum(len(group) for group in groups),
        perturbation=PERTURBATION,
        energy=energy,
        mirrored=_mirrored(engine, groups[::2]),
        seconds=0.0,
    )


def _measured(engine: Engine, groups: list[Floats], seed: int, kept: "_Kept") -> Jacobian:
    """J over all groups, but for the sweeps that an earlier run has done."""
    layers = engine.info.layers
    shifts = sum(layers[index].parameters for index in engine.chosen) // 2
    hint = "(can be interrupted: the same command goes on)"
    start = kept.load()
    with Progress("priming", shifts * len(groups), hint) as progress:
        progress.skip(shifts * kept.sweeps)
        return measure(
            engine,
            groups,
            PERTURBATION,
            seed,
            start=start,
            finished=kept.keep,
            progress=progress.advance,
        )


def thin(jacobian: Floats, rank: int) -> tuple[Floats, Floats, float]:
    """J = left right^T by its largest singular values, and the share of |J|^2 they keep."""
    u, s, vt = _largest(jacobian, rank)
    half = np.sqrt(s)
    energy = float(np.square(s).sum() / np.square(jacobian).sum())
    return (u * half).astype(np.float32), (vt.T * half).astype(np.float32), round(energy, 4)


def _largest(matrix: Floats, rank: int) -> tuple[Floats, Floats, Floats]:
    """The `rank` largest singular values, by subspace iteration (Halko et al., arXiv 0909.4061).

    A few more directions than asked for, drawn at random and multiplied by M M^T, soon span what
    the largest singular vectors span; the SVD is then one of a thin matrix.
    """
    draw = np.random.default_rng(0).standard_normal((matrix.shape[1], rank + OVERSAMPLED))
    basis = np.linalg.qr(matrix @ draw.astype(matrix.dtype)).Q
    for _ in range(ITERATIONS):
        basis = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ basis).Q).Q
    u, s, vt = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    return (basis @ u)[:, :rank], s[:rank], vt[:rank]


def _rank(model: Path, jacobian: Floats, signed: int = 0) -> int:
    """What the file's size pays for, beside so many bytes of signatures."""
    size = unprimed_size(model)
    affordable = min(SHARE * size, ALL * size - BYTES * signed)
    return int(max(1, min(affordable / (BYTES * sum(jacobian.shape)), *jacobian.shape)))


def _mirrored(engine: Engine, groups: list[Floats]) -> float:
    """How often the model says the same of an image and of its mirror image."""
    if engine.info.outputs:  # boxes and maps are mirrored themselves
        return 0.0
    same = 0
    for images in groups:
        both = (images, mirrored(images, engine.info.preprocessing))
        seen, other = (engine.cone(engine.stem(batch), {}).logits.argmax(axis=1) for batch in both)
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


@dataclass
class _Kept:
    """Finished sweeps on disk, until all are done."""

    path: Path
    sweeps: int = 0

    def load(self) -> Jacobian | None:
        with suppress(OSError, ValueError, KeyError, EOFError), np.load(self.path) as stored:
            start = Jacobian(stored["sum"], int(stored["sweeps"]))
            self.sweeps = start.sweeps
            return start
        return None

    def keep(self, so_far: Jacobian) -> None:
        # A folder that cannot be written to only costs the resuming.
        with suppress(ZottaError), replacing(self.path) as part, part.open("wb") as stream:
            np.savez(stream, sum=so_far.sum, sweeps=so_far.sweeps)
            self.sweeps = so_far.sweeps

    def after_interrupt(self, sweeps: int) -> str:
        """What is left of the work, for whoever stopped it."""
        if not self.sweeps:
            return f"none of the {sweeps} sweeps was finished, so nothing is kept of the priming"
        return (
            f"{self.sweeps} of {sweeps} sweeps are kept in {self.path}: the same command goes on "
            "from there"
        )


@contextmanager
def _kept(report: Report, groups: list[Floats], settings: Settings) -> Iterator[_Kept]:
    """Finished sweeps, in a file that is named by all that they depend on."""
    key = hashlib.sha256(sha256(report.model).encode())
    key.update(repr((report.calibration.chosen, PERTURBATION, settings.seed)).encode())
    for group in groups:
        key.update(group.tobytes())
    path = report.model.with_name(f".{report.model.stem}.{key.hexdigest()[:16]}.priming.npz")
    kept = _Kept(path)
    try:
        yield kept
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept.after_interrupt(len(groups))) from None
    path.unlink(missing_ok=True)
