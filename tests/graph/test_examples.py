"""Examples in the docstrings of what walks, cuts and exports graphs run, and say what they say."""

import doctest
import importlib
import pkgutil

import pytest

from zotta_edge import export, graph

PACKAGES = (graph, export)
PLAIN = ["zotta_edge.errors", "zotta_edge.providers", "zotta_edge.sessions"]
MODULES = PLAIN + [
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert doctest.testmod(importlib.import_module(name)).failed == 0
