"""What the studies of trust share: a count of what happened, and of what must not."""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded

# `served`, a real service in a process of its own, belongs to the tests.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

_SHOWN = 20  # faults that are printed


class Record:
    """What a study saw.

    >>> record = Record("kills")
    >>> record.saw("old state")
    >>> record.require(False, "kill 3: unreadable")
    >>> record.close()
    kills: 1 old state; 1 fault
    kill 3: unreadable
    1
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []

    def saw(self, outcome: str, count: int = 1) -> None:
        self.seen[outcome] += count

    def require(self, held: object, otherwise: str) -> None:
        if not held:
            self.faults.append(otherwise)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A part of the study; an exception in it is a fault, and the study goes on."""
        try:
            yield
        except Exception as error:
            self.faults.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")

    def close(self) -> int:
        """Print the line for the docs; the exit code."""
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.seen.items()))
        faults = len(self.faults)
        print(f"{self.title}: {counts}; {faults} fault{'s' * (faults != 1)}", flush=True)
        for fault in self.faults[:_SHOWN]:
            print(fault, flush=True)
        return 1 if self.faults else 0


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """One hash of a state, bit for bit."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def state_of(model: AdaptiveModel) -> str:
    return digest(model.arrays())


@cache
def stream(corruption: str = "fog") -> NDArray[np.uint8]:
    """The embedded digits under a corruption, [1079, 32, 32, 1]."""
    return np.stack([sample.image for sample in embedded.corrupted_stream(corruption)])
