"""Examples in docstrings run, and say what they say."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

from zotta_edge import options, tensor_layouts
from zotta_edge.runtime import (
    adaptive,
    events,
    methods,
    service,
    settings,
    state,
    watch,
    zeroth,
)


def modules() -> list[str]:
    """Everything that adaptation and its service are made of."""
    plain = [
        module.__name__ for module in (adaptive, events, options, service, settings, tensor_layouts)
    ]
    packages = (methods, service, state, watch, zeroth)
    return plain + [name for package in packages for name in _within(package)]


def _within(package: ModuleType) -> list[str]:
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in found]


@pytest.mark.parametrize("name", modules())
def test_examples_run(name: str) -> None:
    if name.endswith("foa.method"):
        pytest.importorskip("cma")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", ["adaptive", "events", "settings", "methods.primed.method"])
def test_there_is_an_example(name: str) -> None:
    module = importlib.import_module(f"zotta_edge.runtime.{name}")
    assert any(test.examples for test in doctest.DocTestFinder().find(module))
