"""How the pooled features move with the norms' shifts: J = dv / dtheta, by forward passes alone.

Central differences on the very model that will run, quantized as it is. Single coordinates would
drown in its rounding (a cosine of 0.64 with the true columns on an INT8 DeiT-Ti), so all of them
move at once, along the d directions q_k of an orthogonal basis with entries of size one:

    J = 1/d sum_k y_k q_k^T,    y_k = (v(theta + c q_k) - v(theta - c q_k)) / 2c

which has d times the signal for the same number of passes. Affines may differ from sample to
sample, so every image of a batch has its own direction. A sweep takes one group of images through
all directions, and runs their stem once. The scales stay: they are half of the passes and of the
file, and did not help.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.watch.statistics import pooled
from zotta_edge.runtime.zeroth.parameters import Parameters

GROUP = 32  # images of a sweep, each of them twice in a pass: plus and minus


@dataclass(frozen=True)
class Jacobian:
    """The mean over the sweeps so far."""

    sum: Floats  # [D, d]
    sweeps: int

    @property
    def mean(self) -> Floats:
        return self.sum / np.float32(max(self.sweeps, 1))


def measure(
    engine: Engine,
    groups: list[Floats],
    size: float,
    seed: int,
    *,
    start: Jacobian | None = None,
    finished: Callable[[Jacobian], None] = lambda so_far: None,
    progress: Callable[[int], None] = lambda directions: None,
) -> Jacobian:
    """J of the engine's chosen layers' shifts; each group of images, [n, C, H, W], makes a sweep.

    `finished` is called after each sweep; what it was given may be the `start` of another run.
    """
    parameters = Parameters(engine.info, engine.chosen)
    shifts = int(parameters.shifts.sum())
    channels = sum(layer.channels for layer in engine.info.layers[min(engine.chosen) :])
    so_far = start or Jacobian(np.zeros((channels, shifts), np.float32), 0)
    for sweep, images in enumerate(groups[so_far.sweeps :], so_far.sweeps):
        basis = orthogonal(shifts, np.random.default_rng([seed, sweep]))
        total = so_far.sum + _sweep(engine, parameters, images, basis, size, progress)
        so_far = Jacobian(total, sweep + 1)
        finished(so_far)
    return so_far


def orthogonal(d: int, rng: np.random.Generator) -> Floats:
    """d directions q_k [d, d] with Q Q^T = d I: cosines of all frequencies under random signs."""
    frequency, place = np.arange(d, dtype=np.float32)[:, None], np.arange(d) + 0.5
    basis = np.cos(np.float32(np.pi / d) * frequency * place) * np.sqrt(2, dtype=np.float32)
    basis[0] = 1
    shuffled = rng.permutation(d)  # no image gets only low frequencies
    turned: Floats = (basis[shuffled] * rng.choice([-1, 1], d)).astype(np.float32)
    return turned


def _sweep(
    engine: Engine,
    parameters: Parameters,
    images: Floats,
    basis: Floats,
    size: float,
    progress: Callable[[int], None],
) -> Floats:
    """1/d sum_k y_k q_k^T, the images taking the directions in turns."""
    stem = engine.stem(np.repeat(images, 2, axis=0))
    channels = sum(layer.channels for layer in engine.info.layers[min(engine.chosen) :])
    jacobian = np.zeros((channels, len(basis)))
    for first in range(0, len(basis), len(images)):
        q = basis[first : first + len(images)]  # [<=n, d]
        idle = np.zeros((len(images) - len(q), len(basis)), np.float32)
        offsets = np.float32(size) * np.concatenate([q, idle])
        theta = np.tile(parameters.source, (2 * len(images), 1))
        theta[:, parameters.shifts] += np.stack([offsets, -offsets], 1).reshape(-1, len(basis))
        outputs = engine.cone(stem, parameters.affines(theta))
        features = pooled(outputs, min(engine.chosen))  # [2n, D]
        y = (features[0::2] - features[1::2])[: len(q)] / (2 * size)
        jacobian += y.T @ q
        progress(len(q))
    return (jacobian / len(basis)).astype(np.float32)
