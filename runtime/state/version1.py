"""State files of zotta-edge 0.1.0: numbers stood in vectors without names."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.runtime.state.fields import Arrays, row, text_to_array

FORMAT = "1"

_FILTERS = ("none", "smooth", "median", "sharpen", "contrast")
_PHASES = ("watching", "adapting", "settled")
_EVENTS = tuple(f"counts.{kind}" for kind in
                ("shortened", "bounded", "rollback", "collapse", "returned"))  # fmt: skip
_COLLAPSE = ("collapse.entropy", "collapse.calm")
_DRIFT = ("samples", "variance", "reference_noise")

# By method: what each vector held, in order; "" is not kept (primed never used its trust).
_VECTORS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "primed": {
        "numbers": ("alignment.steps", "lens.watch.unchanged", "budget.credit"),
        "correction.numbers": ("lens.filter.name", "lens.filter.trial"),
        "guard.numbers": ("", *_COLLAPSE),
        "guard.events": _EVENTS,
        "drift.numbers": tuple(f"lens.watch.drift.{name}" for name in _DRIFT),
    },
    "zotta": {
        "guard.numbers": ("region.trust", *_COLLAPSE),
        "guard.events": _EVENTS,
        "drift.numbers": tuple(f"drift.{name}" for name in _DRIFT),
        "gate.numbers": ("gate.phase", "gate.previous", "gate.total", "gate.samples"),
    },
    "zoa": {"counts": ("updates", "domains"), "domain.counts": ("domain.count", "domain.known")},
}
_RENAMED = {
    "primed": {
        "theta": "alignment.theta",
        "shift": "alignment",
        "offset": "embedding",
        "answers": "mix",
        "drift": "lens.watch.drift",
        "guard.shares": "collapse.shares",
        "correction.first": "lens.filter.watch.first",
        "correction.now": "lens.filter.watch.now",
        **{f"correction.{name}": f"lens.filter.{row('tried', name)}" for name in _FILTERS},
    },
    "zotta": {"guard.shares": "collapse.shares"},
}
_WHOLE = re.compile(
    r"(counts\..*|.*\b(steps|unchanged|trial|samples|updates|domains|count)|images|batches|resets)"
)
_WORDS = {"lens.filter.name": _FILTERS, "gate.phase": _PHASES}


def upgraded(arrays: Arrays, method: str) -> dict[str, NDArray[Any]]:
    """The same state with the names and types of version 2, bit for bit."""
    fields = dict(_split(arrays["counts"], ("images", "batches", "resets")))
    for name, array in arrays.items():
        if name.startswith("method."):
            own = _fields_of(name.removeprefix("method."), array, method)
            fields |= {f"method.{field}": value for field, value in own}
    return fields | dict(_weights(fields))


def _weights(fields: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every sample of a running mean weighed one."""
    for name in fields:
        part, _, last = name.rpartition(".")
        if last == "variance":
            yield f"{part}.weight", fields[f"{part}.samples"].astype(np.float64)


def _fields_of(name: str, array: NDArray[Any], method: str) -> Iterator[tuple[str, NDArray[Any]]]:
    vector = _VECTORS.get(method, {}).get(name)
    part, _, last = name.rpartition(".")
    if vector is not None:
        yield from _split(array, vector)
    elif method == "primed" and last == "numbers":  # of a running mean
        part = _renamed(part, method)
        yield from _split(array, (f"{part}.samples", f"{part}.variance"))
    else:
        yield _renamed(name, method), array


def _renamed(name: str, method: str) -> str:
    for old, new in _RENAMED.get(method, {}).items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return name


def _split(vector: NDArray[Any], names: Iterable[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, number in zip(names, vector.tolist(), strict=True):
        if name in _WORDS:
            yield name, text_to_array(_WORDS[name][int(number)])
        elif name.endswith(".known"):
            yield name, np.array([bool(number)])
        elif name:
            yield name, np.array([int(number) if _WHOLE.fullmatch(name) else number])
