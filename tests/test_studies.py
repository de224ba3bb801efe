"""The studies in benchmarks/ on the models that ship inside: they run, and ask what they should."""

import importlib
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zotta_edge.__main__ import main
from zotta_edge.bench.data.datasets import open_dataset
from zotta_edge.bench.run.conditions import Model, Request, grid
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.preprocessing import fit

Study = Callable[[str], Any]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    """Imports a file of benchmarks/, which is no package."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
    return importlib.import_module


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cost", "batches", "continual", "order", "clean"])
def test_studies_run(name: str, tmp_path: Path, study: Study) -> None:
    """On a few digits: what they find is not the point here."""
    studies = study("past_the_paper")
    few = ["--images", "16", "--corruptions", "fog,clean"]
    assert studies.main([name, "--output", str(tmp_path), *few]) == 0
    found = json.loads((tmp_path / "results.json").read_text())["summaries"]
    assert {"none", "primed"} <= {one["variant"] for one in found}


def test_ablations_ask_the_paper_s_questions(study: Study) -> None:
    ablations = study("ablations")
    data = open_dataset(embedded.STREAM, Classes(10))
    request = Request((Model.open(embedded.MODEL),), data, (), ("fog",))
    args = Namespace(method="zotta", set=[], source=None)
    found = {one.name: one for one in ablations.studies(request, args)}
    assert set(found) == {"loss", "pairs", "lambda2", "layers", "batch"}
    settings = {one.variant.name: one.variant.settings(0) for one in grid(found["loss"].request)}
    assert settings["entropy"].alignment_weight == 0
    assert settings["sfaa"].entropy_weight == 0
    assert settings["both"].always
    pairs = [one.variant.settings(0).pairs for one in grid(found["pairs"].request)]
    assert pairs[1:] == [1, 2, 5, 14]
    layers = [one.variant.settings(0).layers for one in grid(found["layers"].request)]
    assert {(0, 1, 2), (4, 5, 6), tuple(range(7)), None} <= set(layers)
    assert {one.batch for one in grid(found["batch"].request)} == {1, 4, 16, 64}


@pytest.mark.slow
def test_gradients_are_compared(
    tmp_path: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    """With random weights: J^T r still knows the gradient better than two passes do."""
    torch = pytest.importorskip("torch")
    from zotta_edge.models.registry import architecture

    gradient = study("gradient")
    torch.manual_seed(0)
    checkpoint, model = tmp_path / "net.pth", tmp_path / "net.onnx"
    torch.save(architecture("digits_vit").build(10).state_dict(), checkpoint)
    pixels = read_info(embedded.MODEL).preprocessing
    digits = [fit(image, pixels) for image in np.load(embedded.STREAM)["images"][:128]]
    clean = str(tmp_path / "clean.npy")
    np.save(clean, digits)
    export = ["export", "digits_vit", "--weights", str(checkpoint), "-o", str(model)]
    assert main(export) == 0
    assert main(["calibrate", str(model), "--source", clean, "--layers", "1,2", "--prime"]) == 0
    compared = ["--reference", str(checkpoint), "--data", clean, "--source", clean]
    gradient.main(["--model", str(model), *compared, "--corruptions", "contrast"])
    cells = [line.split("|") for line in capsys.readouterr().out.splitlines() if "least" in line]
    found = {name.strip(): float(cosine.split()[0]) for _, name, cosine, *_ in cells}
    assert found[gradient.PRIMED] > found["Eq. 2, 2 passes"] > 0


def test_still_scenes_are_measured(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--scenes", "4", "--frames", "16", "--images", "48", "--rows", "0:100"]
    assert study("still").main([*few, "--corruptions", "clean,fog"]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    gains = {row[1].strip(): float(row[5]) for row in rows}
    assert gains["one scene, clean"] == gains["four scenes, clean"] == 0
    assert {"sorted by class, fog", "classes 0 to 2, fog", "shuffled, clean"} <= gains.keys()
