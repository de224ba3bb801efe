"""Model files that know their source's channel moments."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.calibrate import Settings, calibrate, store
from zotta_edge.calibration.moments import source_moments
from zotta_edge.calibration.selection import Choice
from zotta_edge.runtime.io.preprocessing import as_batch


def with_moments(model: Path, output: Path, images: NDArray[np.uint8]) -> Path:
    """A calibrated copy with the moments of these images."""
    settings = Settings(Choice(layers=(1,)), samples=len(images), threads=1)
    report = calibrate(model, images, settings=settings)
    prepared = as_batch(images, report.info.preprocessing)
    moments = source_moments(model, report.info, prepared, threads=1)
    return store(replace(report, info=replace(report.info, moments=moments)), output)
