"""benchmarks/picture_questions.py on a few questions: it runs, and asks what it should."""

import importlib
from pathlib import Path
from typing import Any

import pytest

METHODS = "none,zotta,foa,slot,perplexity,none fp32,tent"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
    return importlib.import_module("picture_questions")


@pytest.mark.slow
def test_the_table_has_every_method_and_condition(
    study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "CONDITIONS", study.CONDITIONS[1:2] + study.CONDITIONS[-1:])
    few = ["--output", str(tmp_path), "--questions", "8", "--seeds", "1", "--methods", METHODS]
    assert study.main(["table", *few]) == 0
    out = capsys.readouterr().out
    assert all(f"| {name} |" in out for name in METHODS.split(","))
    assert "| method | noise | new questions |" in out
    before = (tmp_path / "cells.json").read_text()
    assert study.main(["table", *few]) == 0  # what is done is not done again
    assert (tmp_path / "cells.json").read_text() == before


@pytest.mark.slow
def test_adaptation_leaves_questions_as_in_training_alone(study: Any) -> None:
    """The small form of `same`: no answer empty that was not, none beyond the limit."""
    clean, count = study.CONDITIONS[0], 96
    plain, before = study.run("none", clean, count, 0)
    for method in ("zotta", "slot", "perplexity"):
        cell, given = study.run(method, clean, count, 0)
        assert cell.longest <= study.LIMIT
        assert not [a for a, b in zip(given, before, strict=True) if b and not a]
        assert cell.total > plain.total - 0.05
        assert sum(a != b for a, b in zip(given, before, strict=True)) <= 0.05 * count


def test_development_has_digits_of_its_own(study: Any) -> None:
    shown = [
        {question.picture[:, :16].tobytes() for question in study.stream(condition, 50, 0)}
        for condition in (study.Condition("a"), study.DEVELOPMENT[0])
    ]
    assert not shown[0] & shown[1] - {bytes(256)}
