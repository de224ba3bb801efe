"""Examples in docstrings run, and print what they say: every module of the package."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import zotta_edge

PUBLIC = (  # what people import: each shows how
    *("options", "sessions", "runtime.adaptive", "runtime.events", "runtime.settings"),
    *("runtime.methods.primed.method", "runtime.io.sources", "export.pipeline", "corruptions"),
)


def modules() -> list[str]:
    walked = pkgutil.walk_packages(zotta_edge.__path__, "zotta_edge.")
    return [module.name for module in walked if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_there_is_an_example(name: str) -> None:
    module = importlib.import_module(f"zotta_edge.{name}")
    assert any(test.examples for test in doctest.DocTestFinder().find(module))
