"""Model files whose descriptions are JSON, and no descriptions."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from zotta_edge.__main__ import main
from zotta_edge.models import embedded


@pytest.mark.parametrize(
    ("model", "key", "change"),
    [
        (embedded.MODEL, "checks", ""),
        (embedded.MODEL, "checks", {"cosine": "x"}),
        (embedded.MODEL, "layers", [{"name": 0.5}]),
        (embedded.MODEL, "layers", [{"name": "\ud800"}]),  # ended `serve` in 500s
        (embedded.MODEL, "labels", ["\ud800"]),
        (embedded.MODEL, "layers", [{"norms": [{"name": [[]]}]}]),
        (embedded.MODEL, "recipe", {"precision": 1e-308}),
        (embedded.MODEL, "prime", {"energy": ""}),
        (embedded.MODEL, "prime", {"images": 1e-308}),
        (embedded.MODEL, "calibration", {"seconds": float("nan")}),
        (embedded.VLM, "recipe", {"target": None}),
        (embedded.VLM, "norms", [{"name": 3}]),
        (embedded.VLM, "prompting", {"template": ["{prompt}"]}),
    ],
)
def test_descriptions_of_another_kind(
    tmp_path: Path, model: Path, key: str, change: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """They loaded, and `inspect` ended in a traceback."""
    path = tmp_path / "model.onnx"
    loaded = onnx.load(str(model))
    (entry,) = (each for each in loaded.metadata_props if each.key == f"zotta.{key}")
    entry.value = json.dumps(changed(json.loads(entry.value), change))
    onnx.save(loaded, str(path))
    for flags in ([], ["--json"]):
        assert main(["inspect", str(path), *flags]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "is damaged" in line


def test_reports_of_endless_drift_are_json(tmp_path: Path) -> None:
    """A source without any likeness: the drift from it is infinite, of which JSON has no number."""
    loaded = onnx.load(str(embedded.MODEL))
    (entry,) = (each for each in loaded.metadata_props if each.key == "zotta.statistics")
    count = len(base64.b64decode(entry.value)) // 4
    entry.value = base64.b64encode(np.full(count, 3e38, "<f4").tobytes()).decode()
    onnx.save(loaded, str(tmp_path / "model.onnx"))
    report = tmp_path / "report.json"
    data = ["--data", str(embedded.STREAM), "--limit", "32", "--report", str(report)]
    assert main(["adapt", "--model", str(tmp_path / "model.onnx"), *data]) == 0
    assert json.loads(report.read_text(), parse_constant=pytest.fail)["drift"] is None


def changed(value: Any, change: Any) -> Any:
    """JSON with what stands in `change` in place of its own."""
    if isinstance(change, dict):
        return value | {key: changed(value.get(key), new) for key, new in change.items()}
    if isinstance(change, list) and isinstance(value, list):
        return [changed(*pair) for pair in zip(value, change, strict=False)] + value[len(change) :]
    return change
