"""Ways to spoil a picture, to learn from what they do to a model's features.

None of them is one of the benchmark's fifteen corruptions; `RELATIVES` names the one that each is
nearest to. An image [H, W, C] from 0 to 1 and a strength from 0 to 1 in, an image out.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zotta_edge.calibration.spoiling import lens, light, sensor, weather
from zotta_edge.calibration.spoiling.fields import Spoilt
from zotta_edge.format import Floats

Image = NDArray[np.uint8]
Degradation = Callable[[Floats, float, Generator], Spoilt]

_FUNCTIONS: tuple[Degradation, ...] = (
    *(light.haze, light.dim, light.bright, light.low_contrast, light.hard_contrast, light.gamma),
    *(light.cast, light.saturation, light.vignette, light.shade, light.glare, light.bloom),
    light.night,
    *(lens.box_blur, lens.gauss_blur, lens.shake, lens.spin, lens.ghost, lens.fringe, lens.warp),
    *(lens.jitter, lens.smear, lens.ringing),
    *(sensor.noise, sensor.speckle, sensor.grain, sensor.colour_noise, sensor.salt_pepper),
    *(sensor.lost_lines, sensor.stripes, sensor.interlace, sensor.blocks, sensor.coarse),
    *(sensor.posterize, sensor.dither, sensor.transform_coding),
    *(weather.flakes, weather.rain, weather.spots, weather.drops, weather.veil, weather.smoke),
    weather.patches,
)
DEGRADATIONS = {function.__name__: function for function in _FUNCTIONS}

RELATIVES = {
    "haze": "fog",
    "low_contrast": "contrast",
    "bright": "brightness",
    "box_blur": "defocus_blur",
    "gauss_blur": "defocus_blur",
    "shake": "motion_blur",
    "spin": "zoom_blur",
    "warp": "elastic_transform",
    "jitter": "glass_blur",
    "noise": "gaussian_noise",
    "speckle": "shot_noise",
    "salt_pepper": "impulse_noise",
    "blocks": "pixelate",
    "transform_coding": "jpeg_compression",
    "flakes": "snow",
    "veil": "frost",
}

_PAIRS = 0.3  # share of images that are spoilt twice...
_LESS = 0.7  # ...by less each


def degrade(image: Image, names: Sequence[str], strengths: Sequence[float], seed: int) -> Image:
    """One degradation after another.

    >>> grey = np.full((32, 32, 3), 128, np.uint8)
    >>> degrade(grey, ["bright"], [1.0], seed=0).mean() > 200
    np.True_
    """
    x: Floats = image.astype(np.float32) / np.float32(255)
    rng = np.random.default_rng(seed)
    for name, strength in zip(names, strengths, strict=True):
        spoilt = DEGRADATIONS[name](x, strength, rng)
        x = spoilt.clip(0, 1).astype(np.float32)
    pixels: Image = (x * 255 + 0.5).astype(np.uint8)
    return pixels


def drawn(rng: Generator, names: Sequence[str] = tuple(DEGRADATIONS)) -> tuple[list[str], Floats]:
    """Which degradations an image gets, one or two, and their strengths."""
    count = 2 if rng.random() < _PAIRS else 1
    chosen = [names[index] for index in rng.choice(len(names), count, replace=False)]
    strengths = rng.uniform(0.05, 1, count) * (1 if count == 1 else _LESS)
    return chosen, strengths.astype(np.float32)
