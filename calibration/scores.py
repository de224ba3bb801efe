"""What the other selection rules of the paper look at: magnitudes, gradients, influence."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, Floats, ModelInfo
from zotta_edge.progress import tracked
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.methods.zotta import ZottaSettings
from zotta_edge.runtime.watch.statistics import Queue, Source
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment
from zotta_edge.runtime.zeroth.parameters import Parameters
from zotta_edge.sessions import open_session

PERTURBATION = 0.05  # c: well above INT8's rounding noise
DIRECTIONS = 6  # two-sided, a layer
IMAGES = 16  # drifted images looked at


def parameter_scores(info: ModelInfo) -> list[float]:
    """CMP2: the mean magnitude of a layer's scales and shifts."""
    return [float(np.abs(p.source).mean()) if len(p) else 0.0 for p in _by_layer(info)]


def gradient_scores(
    path: str | Path, info: ModelInfo, drifted: Floats, seed: int, threads: int | None = None
) -> list[float]:
    """CMP3: root mean square of dL/dtheta over a layer's parameters, from forward passes.

    A directional derivative along u ~ N(0, I) has the second moment |g|^2, so a few of them
    measure the size of a gradient whose direction would take thousands.
    """
    forward, rng = _forward(path, info, drifted, threads), np.random.default_rng(seed)
    objective = _objective(info)

    def slope(parameters: Parameters) -> float:
        step = PERTURBATION * rng.standard_normal(len(parameters), dtype=np.float32)
        sides = (parameters.source + step, parameters.source - step)
        plus, minus = (objective(forward(parameters.affines(side))) for side in sides)
        return (plus - minus) / (2 * PERTURBATION)

    return [
        _rms([slope(p) for _ in range(DIRECTIONS)]) / max(len(p), 1) ** 0.5
        for p in tracked(_by_layer(info), "gradients")
    ]


def influence_scores(
    path: str | Path, info: ModelInfo, drifted: Floats, seed: int, threads: int | None = None
) -> list[float]:
    """CMP4: how far the logits move when a layer's affines do, each sample in its own direction."""
    forward, rng = _forward(path, info, drifted, threads), np.random.default_rng(seed)
    before = forward({}).logits

    def change(parameters: Parameters) -> float:
        step = rng.standard_normal((len(before), len(parameters)), dtype=np.float32)
        theta = parameters.source + np.float32(PERTURBATION) * step
        return _rms(forward(parameters.affines(theta)).logits - before)

    return [change(p) for p in tracked(_by_layer(info), "influence")]


def _forward(
    path: str | Path, info: ModelInfo, images: Floats, threads: int | None
) -> Callable[[Mapping[str, Floats]], Outputs]:
    """Affines -> outputs of the first images; uncut, for every layer is perturbed in its turn."""
    session = open_session(path, threads=threads)
    names = [LOGITS, *(layer.feature for layer in info.layers), EMBEDDING]

    def forward(affines: Mapping[str, Floats]) -> Outputs:
        logits, *features, embedding = session.run(names, {IMAGE: images[:IMAGES], **affines})
        return Outputs(logits, tuple(features), embedding)

    return forward


def _objective(info: ModelInfo) -> EntropyAndAlignment:
    """Eq. 5 with the paper's weights."""
    if info.calibration is None:
        raise ZottaError("the gradient rule needs source statistics: calibrate the model first")
    source = Source.of(info.calibration)
    weights = ZottaSettings().weights(info.layers[0].kind)
    return EntropyAndAlignment(source, *weights, "mean", Queue(0, len(source.mean)))


def _by_layer(info: ModelInfo) -> list[Parameters]:
    return [Parameters(info, [index]) for index in range(len(info.layers))]


def _rms(values: ArrayLike) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
