"""Signing: from source images to signatures, with what was seen kept beside the model meanwhile."""

import hashlib
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from zotta_edge.calibration.calibrate import Report, Settings
from zotta_edge.calibration.copies import Copies
from zotta_edge.calibration.observed import Observed, Observer
from zotta_edge.calibration.samples import Source, read_samples
from zotta_edge.calibration.signatures import fit, moved_chunks, size_of
from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing, sha256
from zotta_edge.format import Prime
from zotta_edge.format.signatures import Signatures
from zotta_edge.progress import Progress
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info

IMAGES, COPIES = 480, 4  # of the source, at most; of each
SMALL, OF_SMALL = 64, (1440, 12)  # up to 64 pixels a side they are cheap, and there are more
SHARE = 0.09  # of the file's size, at most
BYTES = 4 / 3  # a byte in base64
_KEEP = 256  # copies between two writes of what was seen


class Signing:
    """One model's signatures, of which only the size is known before the work."""

    def __init__(self, engine: Engine, report: Report, source: Source, settings: Settings) -> None:
        p, self._seed = engine.info.preprocessing, settings.seed
        small = max(p.height, p.width) <= SMALL
        most, times = OF_SMALL if small else (IMAGES, COPIES)
        images = settings.part_of(most)
        samples = read_samples(source, p, images, settings.seed, strict=settings.strict)
        copies = Copies(samples.images, times, settings.seed)
        self._observer = Observer(engine, report.calibration, copies)
        self._rank = size_of(self._observer).rank(SHARE * unprimed_size(report.model) / BYTES)
        self._path = self._kept_in(report, samples.fingerprint)

    @property
    def bytes(self) -> int:
        return size_of(self._observer).bytes(self._rank)

    def signatures(self, prime: Prime) -> Signatures:
        """Made with forward passes; a run that was stopped goes on where it kept what it saw."""
        started, observer, copies = time.perf_counter(), self._observer, self._observer.copies
        passes = len(observer.filters.names)  # of a copy
        moved = sum(rows.stop - rows.start for rows in moved_chunks(observer))
        hint = "(can be interrupted: the same command goes on)"
        so_far = self._load()
        with Progress("signatures", len(copies) * passes + moved, hint) as progress:
            progress.skip(passes * (0 if so_far is None else len(so_far)))
            seen = observer.observe(so_far, self._keep, lambda n: progress.advance(passes * n))
            fitted = fit(observer, seen, prime, self._rank, progress.advance)
        self._path.unlink(missing_ok=True)
        return replace(fitted, seconds=round(time.perf_counter() - started, 3))

    def _kept_in(self, report: Report, images: str) -> Path:
        """A file that is named by all that what was seen depends on."""
        what = (sha256(report.model), report.calibration.chosen, images, self._seed)
        key = hashlib.sha256(repr((what, self._observer.copies.times)).encode()).hexdigest()
        return report.model.with_name(f".{report.model.stem}.{key[:16]}.signatures.npz")

    def _load(self) -> Observed | None:
        with suppress(OSError, ValueError, KeyError, EOFError), np.load(self._path) as stored:
            return Observed.of(stored)
        return None

    def _keep(self, so_far: Observed) -> None:
        if len(so_far) % _KEEP:
            return
        # A folder that cannot be written to only costs the resuming.
        with suppress(ZottaError), replacing(self._path) as part, part.open("wb") as stream:
            np.savez(stream, **so_far.to_arrays())  # type: ignore[arg-type]


def unprimed_size(model: Path) -> float:
    """The file's size in bytes, less what an earlier priming has put into it."""
    size, info = float(model.stat().st_size), read_info(model)
    if info.prime:
        size -= BYTES * (info.prime.features.size + info.prime.shifts.size)
    if info.signatures:
        size -= BYTES * info.signatures.stored_bytes
    return size
