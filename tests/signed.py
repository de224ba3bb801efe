"""A copy of the embedded ViT that was signed: primed as it is, with signatures from few images."""

import shutil
from dataclasses import replace
from pathlib import Path

from zotta_edge.calibration.calibrate import Report, Settings, store
from zotta_edge.calibration.selection import Selection
from zotta_edge.calibration.sign import Signing
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.arrays import load_images

IMAGES = 48


def signing(model: Path) -> tuple[Signing, Report]:
    """Of a primed file, on the first digits of the stream that ships with it."""
    info = read_info(model)
    assert info.calibration is not None
    report = Report(model, info, info.calibration, Selection(info.chosen), ())
    engine, settings = Engine.open(model, threads=1), Settings(threads=1)
    digits = load_images(embedded.STREAM).images[:IMAGES]
    return Signing(engine, report, digits, settings), report


def make(path: Path) -> Path:
    shutil.copy(embedded.MODEL, path)
    work, report = signing(path)
    assert report.info.prime is not None
    signatures = work.signatures(report.info.prime)
    store(replace(report, info=replace(report.info, signatures=signatures)))
    return path
