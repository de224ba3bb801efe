"""The examples in the docstrings of what reads images, and of the corruptions, are true."""

import doctest
import pkgutil
from importlib import import_module

import pytest

from zotta_edge import corruptions
from zotta_edge.runtime import io

MODULES = [corruptions.__name__, "zotta_edge.progress"] + [
    f"{io.__name__}.{module.name}" for module in pkgutil.iter_modules(io.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples() -> None:
    counts = {name: doctest.testmod(import_module(name)).attempted for name in MODULES}
    assert sum(counts.values()) > 40
    assert all(counts.values()), counts
