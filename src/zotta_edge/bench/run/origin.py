"""Where torch references come from: a checkpoint and clean images."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from zotta_edge.files import sha256


@dataclass(frozen=True)
class Origin:
    """What a torch reference is built from, in words that travel between processes."""

    checkpoint: str
    source: str  # clean images, as calibration takes them
    fingerprint: str  # of both

    @classmethod
    def of(cls, checkpoint: Path, source: str) -> "Origin":
        where = Path(source)
        files = sorted(where.rglob("*")) if where.is_dir() else []
        listing = [f"{file.name} {file.stat().st_size}" for file in files if file.is_file()]
        images = repr(listing) if listing else sha256(where)
        both = f"{sha256(checkpoint)} {images}"
        return cls(str(checkpoint), source, hashlib.sha256(both.encode()).hexdigest())
