"""The self-check: no file is written before it has worked on the exporting machine.

Another CPU may saturate where this one does not: `--target` says which one will run the model.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, Floats, ModelInfo, Preprocessing
from zotta_edge.progress import tracked
from zotta_edge.runtime.watch.statistics import log_softmax

FOUND_TOLERANCE = 0.1  # the same, relative, where 8-bit ranges depend on the batch
SOURCE_TOLERANCE = 1e-4  # largest logit difference of the adaptable fp32 graph from its source
HALF_TOLERANCE = 0.1  # the same from a source that rounds to 16 bits, 1 % of logits around 10
PERTURBATION = 0.25  # how far affines are moved, relative to the mean |scale| of their norm
MIN_COSINE = 0.98  # of quantized logits with fp32 logits at the source affines
MIN_COSINE_PERTURBED = 0.95
_SAMPLES = 8
_ADDED = re.compile(rf"{EMBEDDING}|feature\.\d+")
_TURNS = 7


def check_images(preprocessing: Preprocessing, images: Floats | None, seed: int = 0) -> Floats:
    """A few inputs for the checks: the user's images, or synthetic ones if there are none.

    White noise would give near-flat logits, in which rounding decides the class. Noise summed over
    scales has edges and areas, as photographs have.
    """
    if images is not None:
        return images[:_SAMPLES]
    rng = np.random.default_rng(seed)
    height, width = preprocessing.height, preprocessing.width
    made = np.zeros((_SAMPLES, preprocessing.channels, height, width), np.float32)
    for cell in (1, 4, 16, 64):
        grid = (_SAMPLES, preprocessing.channels, -(-height // cell), -(-width // cell))
        coarse = rng.standard_normal(grid, dtype=np.float32)
        made += coarse.repeat(cell, axis=2).repeat(cell, axis=3)[:, :, :height, :width] / 2
    return made if preprocessing.layout == "NCHW" else made.transpose(0, 2, 3, 1).copy()


def check_adaptable(
    source: ort.InferenceSession,
    adaptable: ort.InferenceSession,
    info: ModelInfo,
    images: Floats,
    tolerance: float = SOURCE_TOLERANCE,
) -> dict[str, float]:
    """The adaptable fp32 graph equals its source, and takes one affine a sample."""
    expected = _run_any(source, images)
    if not np.isfinite(expected).all():
        raise ZottaError(
            "the source gives NaN or infinite logits on the images of the self-check: give real "
            "ones with --data, or check its weights"
        )
    got = _logits(adaptable, images)
    if info.outputs:  # boxes of nothing are far off by a rounding: all of them count together
        difference = float(np.linalg.norm(got - expected)) / _length(expected)
        most = tolerance
    else:
        difference = float(np.abs(_like(expected, got) - expected).max())
        most = tolerance * max(1.0, float(np.abs(expected).max()) / 10)
    if not difference <= most:
        raise ZottaError(
            f"self-check failed: the adaptable graph differs from its source by {difference:.2g} "
            f"(at most {tolerance:g}): nothing was written; please report this model"
        )
    return {
        "source_difference": difference,
        "per_sample_difference": _per_sample_difference(adaptable, info, images),
    }


def relative_time(
    source: ort.InferenceSession, adaptable: ort.InferenceSession, images: Floats
) -> float:
    """What plain inference takes, as a multiple of the source's: the best of a few turns.

    In processor time, which other programs on a busy machine change less than the clock's.
    """
    batch = source.get_inputs()[0].shape[0]
    images = images[: batch if isinstance(batch, int) else None]
    ways = (source, None, _as_read_by(source, images)), (adaptable, _answers(adaptable), images)
    best = [np.inf, np.inf]
    for _ in range(_TURNS):
        for place, (session, outputs, pixels) in enumerate(ways):
            started = time.process_time()
            session.run(outputs, {session.get_inputs()[0].name: pixels})
            best[place] = min(best[place], time.process_time() - started)
    return best[1] / best[0]


def _tolerance(info: ModelInfo) -> float:
    return SOURCE_TOLERANCE if info.recipe.precision == "fp32" else FOUND_TOLERANCE


def check_quantized(
    adaptable: ort.InferenceSession,
    quantized: ort.InferenceSession,
    info: ModelInfo,
    images: Floats,
) -> dict[str, float]:
    """Quantized logits follow fp32's, at the source affines and at perturbed ones."""
    moved = perturbed(info.affines, PERTURBATION, np.random.default_rng(0))
    checks = {}
    for suffix, affines, least in (
        ("", {}, MIN_COSINE),
        ("_perturbed", moved, MIN_COSINE_PERTURBED),
    ):
        expected = _logits(adaptable, images, affines)
        got = _logits(quantized, images, affines)
        cosine = _cosine(expected, got)
        if not cosine >= least:
            raise ZottaError(
                f"self-check failed: {info.recipe.precision} logits have cosine {cosine:.3f} with "
                f"fp32 at {'perturbed' if suffix else 'the source'} affines (at least {least}): "
                "nothing was written; try --data with real images, another --target, or "
                "--precision fp32"
            )
        checks[f"cosine{suffix}"] = cosine
        if not info.outputs:
            checks[f"top1_agreement{suffix}"] = float((expected.argmax(1) == got.argmax(1)).mean())
    return checks


def perturbed(
    affines: Mapping[str, Floats], size: float, rng: np.random.Generator
) -> dict[str, Floats]:
    """Gaussian steps of `size` times the norm's mean |scale|, on scales and shifts alike."""
    moved = {}
    for name, value in affines.items():
        scale = (
            affines[name.removesuffix(".shift") + ".scale"] if name.endswith(".shift") else value
        )
        step = size * max(float(np.abs(scale).mean()), 1e-3)
        moved[name] = value + step * rng.standard_normal(value.shape, dtype=np.float32)
    return moved


def dead_affines(session: ort.InferenceSession, info: ModelInfo, images: Floats) -> list[str]:
    """Scales and shifts that no step changes the logits of, on two images and at two sizes."""
    names = list(info.affines)
    for image, size in ((images[:1], PERTURBATION), (images[-1:], 10 * PERTURBATION)):
        names = _without_effect(session, info, image, names, size)
    return names


def _without_effect(
    session: ort.InferenceSession, info: ModelInfo, image: Floats, names: list[str], size: float
) -> list[str]:
    """Sample j of a batch carries a step on affine j alone, so that one pass tests many."""
    moved = perturbed(info.affines, size, np.random.default_rng(1))
    dead: list[str] = []
    for group in tracked(list(_chunks(names, _SAMPLES)), "checking affines"):
        batch = np.repeat(image, len(group) + 1, axis=0)  # the last sample stays at the source
        feeds = {}
        for index, name in enumerate(group):
            feeds[name] = np.repeat(info.affines[name], len(batch), axis=0)
            feeds[name][index] = moved[name][0]
        logits = _logits(session, batch, feeds)
        dead += [n for i, n in enumerate(group) if np.array_equal(logits[i], logits[-1])]
    return dead


def _per_sample_difference(session: ort.InferenceSession, info: ModelInfo, images: Floats) -> float:
    """One affine per sample in a batch equals as many single-sample runs."""
    images = images[:2]
    rng = np.random.default_rng(2)
    each = [perturbed(info.affines, PERTURBATION, rng) for _ in images]
    together = _logits(
        session, images, {name: np.concatenate([m[name] for m in each]) for name in info.affines}
    )
    alone = np.concatenate(
        [_logits(session, images[i : i + 1], moved) for i, moved in enumerate(each)]
    )
    difference = float(np.abs(together - alone).max())
    if not difference <= _tolerance(info) * max(1.0, float(np.abs(alone).max())):
        raise ZottaError(
            f"self-check failed: per-sample affines differ from single runs by {difference:.2g}: "
            "nothing was written; please report this model"
        )
    return difference


def _logits(
    session: ort.InferenceSession, images: Floats, affines: Mapping[str, Floats] | None = None
) -> Floats:
    """The logits, or all answers of a network that has none, one row a sample."""
    return _flat(session.run(_answers(session), {IMAGE: images, **(affines or {})}))


def _answers(session: ort.InferenceSession) -> list[str]:
    names = [tensor.name for tensor in session.get_outputs()]
    return [LOGITS] if LOGITS in names else [name for name in names if not _ADDED.fullmatch(name)]


def _flat(answers: list[NDArray[Any]]) -> Floats:
    rows = [answer.reshape(len(answer), -1).astype(np.float32) for answer in answers]
    return np.concatenate(rows, axis=1)


def _run_any(session: ort.InferenceSession, images: Floats) -> Floats:
    """The source's own names and, where its batch is fixed, its own batch size."""
    source = session.get_inputs()[0]
    batch = source.shape[0] if source.shape else None
    size = batch if isinstance(batch, int) and batch > 0 else len(images)
    pixels = _as_read_by(session, images)
    runs = [_flat(session.run(None, {source.name: part})) for part in _chunks(pixels, size)]
    return np.concatenate(runs)


def _as_read_by(source: ort.InferenceSession, images: Floats) -> NDArray[np.floating[Any]]:
    """The source may be in 16 bits."""
    half = source.get_inputs()[0].type == "tensor(float16)"
    return images.astype(np.float16) if half else images


def _like(expected: Floats, logits: Floats) -> Floats:
    """Logits as the source gives them: it may end in Softmax or LogSoftmax, which was cut."""
    log_probabilities = log_softmax(logits)
    if np.allclose(np.exp(expected).sum(1), 1, atol=1e-3):
        return log_probabilities
    if expected.min() >= 0 and np.allclose(expected.sum(1), 1, atol=1e-3):
        return np.exp(log_probabilities)
    return logits


def _length(values: Floats) -> float:
    return float(np.linalg.norm(values)) or 1.0


def _cosine(a: Floats, b: Floats) -> float:
    """Mean over the samples of the cosine of their logits, each centred over the classes.

    In units of the largest logit: the squares of logits that are all but zero would vanish.
    A sample without any spread between its classes counts as 1 if both agree on that, else as 0.
    """
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    unit = max(float(np.abs(a).max()), float(np.abs(b).max())) or 1.0
    a, b = a / np.float32(unit), b / np.float32(unit)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    flat = (np.abs(a - b).max(1) <= 1e-6).astype(np.float32)
    return float(np.divide((a * b).sum(1), lengths, out=flat, where=lengths > 0).mean())


def _chunks(items, size: int) -> Iterator:  # type: ignore[no-untyped-def, type-arg]
    for start in range(0, len(items), size):
        yield items[start : start + size]
