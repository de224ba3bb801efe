"""The study of the accuracy estimate, on the digits that ship inside."""

import importlib
from pathlib import Path

import pytest

from zotta_edge.calibration.calibrate import Settings, calibrate, store
from zotta_edge.calibration.reliability import assess
from zotta_edge.calibration.selection import Choice
from zotta_edge.models import embedded


@pytest.mark.slow
def test_the_studies_print_what_is_estimated_and_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks" / "trust")
    study = importlib.import_module("estimate")
    digits, settings = embedded.digits(32), Settings(choice=Choice(layers=(1, 2)))
    report = calibrate(embedded.MODEL, digits, settings=settings)
    model = store(assess(report, digits, settings), tmp_path / "assessed.onnx")
    few = ["--rows", "0:64", "--corruptions", "fog", "--methods", "none,neo"]
    assert study.main(["--model", str(model), *few]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| none, fog") == 2  # shuffled and sorted
    assert "neo: mean absolute error" in printed
    few = ["--rows", "0:48", "--streams", "mixed,prepared,poison", "--methods", "neo"]
    study = importlib.import_module("harmful")
    assert study.main(["--model", str(model), "--data", str(embedded.STREAM), *few]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| mixed | neo") == 1
    assert printed.count("| poison, ") == 3
    assert "| prepared as raw | | refused" in printed
