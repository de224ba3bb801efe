"""The studies in benchmarks/ on the models that ship inside: they run, and ask what they should."""

import importlib
import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.__main__ import main
from zotta_edge.bench.data.datasets import open_dataset
from zotta_edge.bench.run.conditions import Model, Request, grid
from zotta_edge.export.pipeline import ExportOptions, export_model
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("passes", 9), ("reduction", 4), ("peers", 9), ("wild", 4 * 4)]
)
def test_studies_fit(
    name: str, count: int, tmp_path: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every method of theirs is tried on a few digits."""
    few = ["--images", "16", "--corruptions", "fog", "--output", str(tmp_path), "--dry-run"]
    assert study("past_the_paper").main([name, *few]) == 0
    assert f"{count} conditions to run" in capsys.readouterr().err


def test_ablations_ask_the_paper_s_questions(study: Study) -> None:
    ablations = study("ablations")
    data = open_dataset(embedded.STREAM, Classes(10))
    request = Request((Model.open(embedded.MODEL),), data, (), ("fog",))
    args = Namespace(method="zotta", set=[], source=None)
    found = {one.name: one for one in ablations.studies(request, args)}
    assert set(found) == {"loss", "pairs", "lambda2", "layers", "sets", "queue", "batch"}
    settings = {one.variant.name: one.variant.settings(0) for one in grid(found["loss"].request)}
    assert settings["entropy"].alignment_weight == 0
    assert settings["sfaa"].entropy_weight == 0
    assert settings["both"].always
    pairs = [one.variant.settings(0).pairs for one in grid(found["pairs"].request)]
    assert pairs[1:] == [1, 2, 5, 14]
    layers = [one.variant.settings(0).layers for one in grid(found["layers"].request)]
    assert {(0, 1, 2), (4, 5, 6), tuple(range(7)), None} <= set(layers)
    assert {one.batch for one in grid(found["batch"].request)} == {1, 2, 4, 16, 64}
    queues = {(one.batch, one.variant.settings(0).queue) for one in grid(found["queue"].request)}
    assert {(2, 1), (1, 5)} <= queues
    sets = [one.variant.settings(0).layers for one in grid(found["sets"].request)]
    assert {(0,), (3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)} <= set(sets)


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


def test_orders_of_classes_are_measured(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--rows", "0:200", "--corruptions", "clean,fog", "--orders", "1", "--mixed"]
    assert study("sorted").main([*few, "--streams", "sorted,dirichlet,shuffled"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    rows = {(row[1].strip(), row[3].strip()): row for row in (line.split("|") for line in lines)}
    assert float(rows["sorted", "primed"][5].split()[0]) > 30
    assert float(rows["shuffled", "primed"][7]) == 0
    assert {"sorted", "dirichlet", "shuffled"} == {stream for stream, _ in rows}
    assert ("sorted", "lame") in rows


def test_runs_of_classes_are_drawn(study: Study) -> None:
    labels, rng = np.repeat(np.arange(5), 40), np.random.default_rng(0)
    for name, draw in study("sorted").STREAMS.items():
        order = draw(labels, rng)
        assert sorted(order.tolist()) == list(range(200)), name
        changes = np.count_nonzero(np.diff(labels[order]))
        low, high = {"sorted": (4, 4), "runs": (8, 70), "dirichlet": (4, 150)}.get(name, (140, 199))
        assert low <= changes <= high, name


def test_still_scenes_are_measured(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--scenes", "4", "--frames", "16", "--images", "48", "--rows", "0:100"]
    assert study("still").main([*few, "--corruptions", "clean,fog"]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    gains = {row[1].strip(): float(row[5]) for row in rows}
    assert gains["one scene, clean"] == gains["four scenes, clean"] == 0
    assert {"sorted by class, fog", "classes 0 to 2, fog", "shuffled, clean"} <= gains.keys()


def test_many_worlds_are_measured(
    study: Study, signed_digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--images", "24", "--corruptions", "fog,contrast", "--orders", "2", "--threads", "1"]
    assert study("worlds").main(["--model", str(signed_digits), *few]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    names = [row[1].strip() for row in rows]
    assert set(names) == set(study("worlds").STREAMS)
    assert names.count("mixed") == 2
    assert all(0.99 < float(row[8]) <= 1.081 for row in rows)  # passes: the budget is kept
    gains = {row[1].strip(): float(row[5]) for row in rows}
    assert gains["alone"] > 0
    assert gains["mixed"] > 0


def test_long_streams_repeat_the_data(tmp_path: Path, study: Study, capsys: Any) -> None:
    with np.load(embedded.STREAM) as stored:
        pixels = read_info(embedded.MODEL).preprocessing
        digits = np.stack([fit(image, pixels) for image in stored["images"][:40]])
        np.savez(tmp_path / "few.npz", images=digits, labels=stored["labels"][:40])
    asked = ["--model", str(embedded.MODEL), "--data", str(tmp_path / "few.npz")]
    asked += ["--images", "100", "--stretch", "50", "--corruptions", "fog", "--batch-size", "50"]
    more = ["--methods", "none,neo", "--output", str(tmp_path / "out")]
    assert study("long_streams").main([*asked, *more, "--plot", str(tmp_path / "a.png")]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[0] == "| images seen | none | neo |"
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["1-50", "51-100"]
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_figures_are_drawn(tmp_path: Path, study: Study, capsys: Any) -> None:
    figures = study("figures")
    pixels = read_info(embedded.MODEL).preprocessing
    digits = [fit(image, pixels) for image in np.load(embedded.STREAM)["images"][:96]]
    clean = str(tmp_path / "clean.npy")
    np.save(clean, digits)
    few = ["--source", clean, "--data", clean, "--images", "64", "--batch-size", "32"]
    drawn = ["--plot", str(tmp_path / "a.png")]
    asked = ["features", "--model", str(embedded.MODEL), "--corruption", "fog", *few, *drawn]
    assert figures.main(asked) == 0
    assert "2 updates" in capsys.readouterr().out
    model = shutil.copy(embedded.MODEL, tmp_path / "pure.onnx")
    assert main(["calibrate", str(model), "--source", clean, "--samples", "32"]) == 0
    assert figures.main(["purity", "--model", str(model), *drawn]) == 0
    results = {"summaries": [{"variant": "zotta-k1", "passes": 3.0, "mean": [40.0, 42.0]}]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert figures.main(["passes", "--results", str(tmp_path / "results.json"), *drawn]) == 0
    assert "| zotta-k1 | 3.00 | 41.0 |" in capsys.readouterr().out


@pytest.mark.slow
def test_gradients_are_followed(tmp_path: Path, study: Study, capsys: Any) -> None:
    """Random weights; ours is nearer to torch's than naive ZOO's, as fewer parameters move."""
    torch = pytest.importorskip("torch")
    from zotta_edge.models.registry import architecture

    torch.manual_seed(0)
    checkpoint, model = tmp_path / "net.pth", tmp_path / "net.onnx"
    torch.save(architecture("digits_vit").build(10).state_dict(), checkpoint)
    pixels = read_info(embedded.MODEL).preprocessing
    clean = str(tmp_path / "clean.npy")
    np.save(clean, [fit(image, pixels) for image in np.load(embedded.STREAM)["images"][:96]])
    assert main(["export", "digits_vit", "--weights", str(checkpoint), "-o", str(model)]) == 0
    assert main(["calibrate", str(model), "--source", clean, "--layers", "1"]) == 0
    asked = ["--reference", str(checkpoint), "--source", clean, "--data", clean]
    few = ["--images", "96", "--batch-size", "32", "--corruption", "contrast"]
    capsys.readouterr()
    assert study("figures").main(["gradients", "--model", str(model), *asked, *few]) == 0
    rows = capsys.readouterr().out.splitlines()
    named = [row.split(":") for row in rows if "cosine" in row]
    cosines = {name: float(rest.split("cosine ")[1].split()[0]) for name, rest in named}
    assert cosines["zotta"] > cosines["zoo"]


@pytest.mark.slow
def test_ttn_learns_a_share_for_every_channel(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "small_norms.py").write_text(
        "from torch import manual_seed, nn\n"
        "def net():\n"
        "    manual_seed(0)\n"
        "    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3),\n"
        "            nn.BatchNorm2d(6), nn.ReLU()]\n"
        "    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = ExportOptions(precision="fp32", size=(16, 16), mean=(0.5,), std=(0.5,))
    export_model("small_norms:net", tmp_path / "net.onnx", options)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 16, 16, 3)).astype(np.uint8)
    np.savez(tmp_path / "source.npz", images=images, labels=rng.integers(0, 4, 40))
    asked = ["--module", "small_norms:net", "--model", str(tmp_path / "net.onnx")]
    asked += ["--source", str(tmp_path / "source.npz"), "--output", str(tmp_path / "alphas.npz")]
    study("ttn").main([*asked, "--batch-size", "16"])
    with np.load(tmp_path / "alphas.npz") as stored:
        alphas = {name: stored[name] for name in stored}
    assert {name: len(value) for name, value in alphas.items()} == {"1": 8, "4": 6}
    together = np.concatenate(list(alphas.values()))
    assert together.min() >= 0
    assert together.max() <= 1
    assert together.std() > 0.05
    settings = Settings(alpha_file=str(tmp_path / "alphas.npz"))
    model = AdaptiveModel.load(tmp_path / "net.onnx", settings, method="alpha_bn")
    plain = AdaptiveModel.load(tmp_path / "net.onnx", method="none")
    assert not np.allclose(model.predict(images).logits, plain.predict(images).logits, atol=1e-3)


def test_any_model_goes_from_the_file_to_a_table(
    residual_net: onnx.ModelProto,
    tmp_path: Path,
    study: Study,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A BatchNorm network with random weights: what is gained is not the point here."""
    onnx.save(residual_net, tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    pixels = {
        "images": rng.integers(0, 256, (24, 16, 16, 3), np.uint8),
        "labels": np.arange(24) % 5,
    }
    np.savez(tmp_path / "data.npz", **pixels)
    data = str(tmp_path / "data.npz")
    command = [str(tmp_path / "net.onnx"), "--source", data, "--data", data, "--mean", "0.5"]
    command += ["--std", "0.5", "--batch-sizes", "8", "--corruptions", "fog", "--orders", "sorted"]
    assert study("any_model").main([*command, "--output", str(tmp_path / "out")]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| net.onnx")]
    assert [row.split(" | ")[1] for row in rows] == ["bn_adapt", "default"]
    assert read_info(tmp_path / "out" / "net.onnx").moments is not None


def test_boxes_are_found_again(study: Study) -> None:
    detector = study("detector")
    rows = np.array(
        [[8, 8, 8, 8, 0.9], [9, 8, 8, 8, 0.8], [40, 40, 8, 8, 0.6], [60, 60, 8, 8, 0.1]]
    )
    truth = detector._kept(rows.astype(np.float32), 0.25)
    assert truth[:, 4].tolist() == pytest.approx([0.9, 0.6])  # one repeats, one is unsure
    assert detector._f1([truth], [truth]) == 100
    near, far = truth[:1] + [[2, 0, 2, 0, 0, 0]], truth[1:] + [[6, 0, 6, 0, 0, 0]]
    assert detector._f1([truth], [np.r_[near, far]]) == 50


def test_decoders_under_shift(
    tmp_path: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a tiny decoder of random weights: the tables have a row a method."""
    from tiny_decoders import tiny_decoder

    from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder

    decoders, asked = study("decoders"), study("decoder_questions")
    model, text = tmp_path / "tiny.onnx", tmp_path / "text.txt"
    export_decoder(tiny_decoder(), model, DecoderOptions("fp32"))
    text.write_text(" ".join("abcdefgh" * 9))
    few = ["--model", str(model), "--max-tokens", "3", "--threads", "1"]
    assert decoders.main(["questions", *few, "--count", "2"]) == 0
    assert decoders.main(["text", *few, "--texts", str(text), "--window", "8", "--count", "2"]) == 0
    kept = ["--shifts", "mixed", "stories", "--records", str(tmp_path / "streams.jsonl")]
    assert decoders.main(["questions", *few, *kept, "--count", "3", "--seed", "7"]) == 0
    assert decoders.main(["project"]) == 0
    assert '"seed": 7' in (tmp_path / "streams.jsonl").read_text()
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [rows.count(f"| {method}") for method in decoders.METHODS] == [3, 3, 3, 3]
    right = asked.Asked("larger", "Which is larger, 13 or 8?", ("13", "thirteen"))
    assert asked.is_right(right, "13 is larger than 8.")
    assert not asked.is_right(right, "8 is smaller than 13.")
    dev, reported = (
        {each.text for each in asked.questions(40, "plain", flag) if each.kind == "capital"}
        for flag in (False, True)
    )
    assert not dev & reported


def test_streams_of_answers_are_compared(tmp_path: Path, study: Study) -> None:
    """Gains, changes and new faults are counted against the same questions without adaptation."""
    streams = study("decoder_streams")
    cost = (4, 40, 2.0, 10.0)
    plain = streams.Stream("none", "plain", 0, (True, True), ((5, 6), (7,)), *cost)
    other = streams.Stream("slot", "plain", 0, (True, False), ((5, 6), ()), *cost)
    for each in (plain, other):
        streams.keep(tmp_path / "kept.jsonl", each)
    assert streams.read(tmp_path / "kept.jsonl") == [plain, other]
    row = streams.table([plain, other]).splitlines()[-1].split(" | ")
    assert row[:8] == ["| slot", "2", "50.0", "-50.0 +- 35.4", "50 %", "2", "1", "0"]
    assert row[8:] == ["2.0", "20", "1.0", "10 |"]
    again = streams.Stream("slot", "plain", 1, (True, True), ((5, 6), ()), *cost)
    assert "| 4 | 75.0 ± 35.4 |" in streams.table([plain, other, again])


def test_rows_of_pictures_are_moved_back(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    rows = study("picture_rows")
    source = np.random.default_rng(0).standard_normal((40, 6))
    drifted = (source[:16, None] + 3).astype(np.float32)
    assert abs(rows.moved_back(drifted, source).mean() - source[:16].mean()) < 0.5
    assert rows.main(["--questions", "8"]) == 0
    assert "| four digits | " in capsys.readouterr().out
