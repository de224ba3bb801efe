"""`zotta-edge bench` from the command line to the report, with the models that ship inside."""

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.__main__ import main
from zotta_edge.bench.report.results import read_outcomes
from zotta_edge.bench.run.trial import LETTERS, Task
from zotta_edge.corruptions import corrupt
from zotta_edge.errors import ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.io.arrays import load_images
from zotta_edge.runtime.io.preprocessing import fit

IMAGES, BATCH = 40, 16
SMALL = ["--images", str(IMAGES), "--batch-size", str(BATCH), "--set", "always=true",
         "--set", "pairs=1", "--jobs", "1"]  # fmt: skip

ASKED = ["--methods", "zotta", "--corruptions", "fog,contrast", "--seeds", "2"]


def arguments(output: Path, *more: str) -> list[str]:
    return ["bench", "--output", str(output), *SMALL, *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("bench") / "out"
    assert main(arguments(output, *ASKED)) == 0
    return output


def conditions(output: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((output / "conditions").iterdir())]


def test_answers_are_those_of_the_model(finished: Path) -> None:
    """The draw, the corruption, the order and the scoring, done again by hand."""
    data = load_images(embedded.STREAM)
    assert data.labels is not None
    for found in conditions(finished):
        seed, method = found["condition"]["seed"], found["condition"]["method"]
        drawn = np.random.default_rng([seed, 0]).permutation(len(data.images))[:IMAGES]
        model = AdaptiveModel.load(
            embedded.MODEL, Settings(always=True, pairs=1, seed=seed), method, threads=1
        )
        images = [
            corrupt(fit(data.images[index], model.info.preprocessing),
                    found["condition"]["stream"], 5, [seed, row])
            for row, index in enumerate(drawn)
        ]  # fmt: skip
        answers = np.concatenate(
            [model.predict(images[i : i + BATCH]).labels for i in range(0, IMAGES, BATCH)]
        )
        expected = "".join("01"[int(right)] for right in answers == data.labels[drawn])
        assert found["correct"] == expected
        assert found["passes"] == pytest.approx(model.passes / IMAGES)


@pytest.mark.parametrize("method", ["zotta", "primed"])
def test_a_shared_process_finds_the_same(tmp_path: Path, method: str) -> None:
    asked = ["--methods", method, "--corruptions", "fog,contrast"]
    assert main(arguments(tmp_path / "own", *asked)) == 0
    assert main(arguments(tmp_path / "shared", *asked, "--shared")) == 0
    pairs = list(zip(conditions(tmp_path / "own"), conditions(tmp_path / "shared"), strict=True))
    for own, shared in pairs:
        same = ("correct", "adapted", "drift", "condition")
        assert {name: own[name] for name in same} == {name: shared[name] for name in same}
        assert shared["passes"] == pytest.approx(own["passes"])
        assert shared["peak"] is None
    assert len({own["condition"]["stream"] for own, _ in pairs}) == 2


def test_every_number_carries_its_origin(finished: Path) -> None:
    for found in conditions(finished):
        assert found["command"] == shlex.join(["zotta-edge", *arguments(finished, *ASKED)])
        assert found["cpu"]
        assert found["versions"]["onnxruntime"]
        assert found["model"]["sha256"] == found["condition"]["fingerprint"]
        assert len(found["correct"]) == IMAGES == found["images"]
        assert found["batches"] == [16, 16, 8]
        assert found["adapted"] == ("111" if found["condition"]["method"] == "zotta" else "000")
        assert found["peak"] > 2**20
        if found["condition"]["method"] == "zotta":
            assert found["time_ratio"] > 0
            assert found["passes"] > 2
            assert found["condition"]["settings"]["pairs"] == 1
    with (finished / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 8
    assert all(row["command"] and row["cpu"] and row["versions"] for row in rows)


def test_summaries_are_means_over_seeds(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert len(results["conditions"]) == 8
    zotta = next(one for one in results["summaries"] if one["variant"] == "zotta")
    none = next(one for one in results["summaries"] if one["variant"] == "none")
    assert zotta["seeds"] == [0, 1]
    by_hand = [
        100 * one["correct"].count("1") / IMAGES
        for one in results["conditions"]
        if one["condition"]["variant"] == "zotta" and one["condition"]["stream"] == "fog"
    ]
    assert sorted(zotta["accuracy"]["fog"]) == pytest.approx(sorted(by_hand))
    difference = np.array(zotta["mean"]) - np.array(none["mean"])
    assert zotta["gain"] == pytest.approx(difference.tolist())
    assert none["passes"] == 1
    assert none["memory_ratio"] == 1


def test_table_for_people(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(finished, *ASKED)) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert "mean ± standard deviation over 2 seeds" in text
    assert ["none", "zotta"] in lines
    firsts = [line[0] for line in lines if line]
    assert {"fog", "contrast", "mean", "worst", "gain", "passes", "time", "memory"} <= set(firsts)
    assert max(len(line) for line in text.splitlines()) < 120
    assert "| fog | " in (finished / "table.md").read_text()


class _Page(HTMLParser):
    """Collects what a page would fetch, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            value
            for name, value in attrs
            if value and name in ("src", "href", "xlink:href", "data") and value[0] != "#"
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_is_whole_and_alone(finished: Path) -> None:
    html = (finished / "report.html").read_text()
    page = _Page()
    page.feed(html)
    assert page.fetched == []
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "http" not in html.replace("http://www.w3.org", "")
    assert "url(http" not in html
    assert "prefers-color-scheme: dark" in html
    for words in ("Gain by corruption", "Accuracy against cost", "Accuracy along the stream",
                  "Distance from the source", "Where the numbers come from",
                  "zotta-edge ", "passes an image", "sha256"):  # fmt: skip
        assert words in page.text or words in html
    drawings = html.split("<svg ")[1:]
    assert len(drawings) == 4
    for drawing in drawings:
        svg = "<svg " + drawing[: drawing.index("</svg>") + len("</svg>")]
        ElementTree.fromstring(svg.replace("xlink:href", "href"))
        assert "currentColor" in svg
        assert "#ffffff" not in svg  # it would be a white box on a dark page


def test_purity_is_drawn_where_calibration_measured_it() -> None:
    from zotta_edge.bench.report import figures

    drawing = figures.purity(["blocks.0", "blocks.1"], [0.7, 0.62], [1])
    svg = figures.as_svg(drawing, "Clustering purity by layer")
    assert "blocks.1" in svg
    assert 'aria-label="Clustering purity by layer"' in svg


def test_finished_conditions_are_not_repeated(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(finished, output)
    gone = next((output / "conditions").glob("*zotta*fog*"))
    content = json.loads(gone.read_text())
    gone.unlink()
    before = {file: file.stat().st_mtime_ns for file in (output / "conditions").iterdir()}
    assert main(arguments(output, *ASKED)) == 0
    assert "1 conditions to run, 7 done already" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in before} == before
    again = json.loads(gone.read_text())
    for same in ("correct", "distance", "drift", "adapted", "passes"):
        assert again[same] == content[same]


def start(output: Path) -> "subprocess.Popen[str]":
    asked = arguments(output, "--corruptions", "fog,snow,contrast")
    return subprocess.Popen(
        [sys.executable, "-m", "zotta_edge", *asked],
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in a shell's background inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_results(output: Path, count: int) -> list[Path]:
    for _ in range(6000):
        found = list(output.glob("conditions/*.json"))
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError("no condition was finished")


def test_a_killed_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    process = start(output)
    wait_for_results(output, 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (output / "results.json").exists()
    done = {file: file.stat().st_mtime_ns for file in wait_for_results(output, 2)}
    assert len(done) < 6
    assert main(arguments(output, "--corruptions", "fog,snow,contrast")) == 0
    assert "done already" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in done} == done
    assert len(list((output / "conditions").iterdir())) == 6
    assert not (output / "scratch").exists()


def test_ctrl_c_leaves_nothing_half_done(tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(output)
    wait_for_results(output, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    assert {file.name for file in output.iterdir()} == {"conditions"}
    assert all(file.suffix == ".json" for file in (output / "conditions").iterdir())


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = shutil.copy(embedded.MODEL, tmp_path / "m.onnx")
    asked = ["--model", str(model), "--data", str(embedded.STREAM), "--dry-run"]
    assert main(arguments(tmp_path / "out", *asked, "--scenario", "continual")) == 0
    assert "2 conditions to run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_quick_is_smaller_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--output", str(tmp_path / "out"), "--quick", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "quick: 4 corruptions, 200 images of each" in said
    assert "8 conditions to run" in said


def test_scenarios_variants_and_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two models, a variant with settings of its own, and a stream of several domains."""
    models = ["--model", str(embedded.MODEL), str(embedded.RESNET)]
    asked = ["--data", str(embedded.STREAM), "--corruptions", "fog,clean", "--scenario", "mixed",
             "--variant", "two=zotta;pairs=2;layers=[1]", "--jobs", "2"]  # fmt: skip
    assert main(arguments(tmp_path / "out", *models, *asked)) == 0
    shown = capsys.readouterr().out
    assert "digits_vit_int8, mixed" in shown
    assert "digits_resnet_gn_int8, mixed" in shown
    found = [one for one in conditions(tmp_path / "out") if one["condition"]["variant"] == "two"]
    assert len(found) == 2
    for one in found:
        assert one["condition"]["settings"]["pairs"] == 2
        assert one["status"]["layers"] == [1]
        assert set(one["domain"]) == set(LETTERS[:2])
        assert len(one["correct"]) == 2 * IMAGES


def test_severity_comes_and_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One stream, a ninth of the images at each step, one accuracy a corruption."""
    asked = ["--corruptions", "fog,contrast", "--scenario", "gradual", "--methods", "none"]
    assert main(arguments(tmp_path / "out", *asked)) == 0
    (found,) = conditions(tmp_path / "out")
    assert found["condition"]["corruptions"] == ["fog"] * 5 + ["contrast"] * 5
    steps = [letter for letter, _ in groupby(found["domain"])]
    assert steps == list("abcdedcba" + "fghijihgf")
    shown = capsys.readouterr().out
    assert [shown.count(f"\n{name} ") for name in ("fog", "contrast")] == [1, 1]


def test_corrupted_data_is_taken_as_it_is(tmp_path: Path) -> None:
    """CIFAR-10-C's layout: the second of five severities, drawn and scored by hand."""
    data = load_images(embedded.STREAM)
    assert data.labels is not None
    digits = data.images[:60].repeat(4, axis=1).repeat(4, axis=2)
    folder = tmp_path / "digits-c"
    folder.mkdir()
    np.save(folder / "fog.npy", digits)  # 12 images at each severity
    np.save(folder / "labels.npy", data.labels[:60])
    asked = ["--model", str(embedded.MODEL), "--data", str(folder), "--methods", "none"]
    assert main(arguments(tmp_path / "out", *asked, "--severity", "2")) == 0
    (found,) = conditions(tmp_path / "out")
    rows = 12 + np.random.default_rng([0, 0]).permutation(12)
    model = AdaptiveModel.load(embedded.MODEL, method="none", threads=1)
    right = model.predict(digits[rows]).labels == data.labels[rows]
    assert found["correct"] == "".join("01"[int(one)] for one in right)


def test_torch_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The architecture is found from the checkpoint; gains are counted from fp32."""
    torch = pytest.importorskip("torch")
    from zotta_edge.models.registry import architecture

    torch.manual_seed(0)
    checkpoint = tmp_path / "weights.pth"
    torch.save(architecture("digits_vit").build(10).state_dict(), checkpoint)
    digits = load_images(embedded.STREAM).images[:16].repeat(4, axis=1).repeat(4, axis=2)
    np.save(tmp_path / "clean.npy", digits)
    asked = ["--methods", "tent", "--corruptions", "fog", "--reference", str(checkpoint),
             "--source", str(tmp_path / "clean.npy"), "--jobs", "2"]  # fmt: skip
    assert main(arguments(tmp_path / "out", *asked)) == 0
    assert "none (fp32)" in capsys.readouterr().out
    found = {one["condition"]["method"]: one for one in conditions(tmp_path / "out")}
    assert set(found) == {"none", "fp32:none", "fp32:tent"}
    assert found["fp32:none"]["passes"] == 1
    assert found["fp32:tent"]["passes"] > 1
    assert found["fp32:tent"]["versions"]["torch"]
    assert found["fp32:tent"]["condition"]["origin"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--methods", "zoota"], "no method is called zoota: there are none, primed, moments"),
        (["--set", "pears=1"], "no setting is called pears: did you mean pairs"),
        (["--variant", "half"], "cannot read the variant 'half'"),
        (["--variant", "a=zotta", "--variant", "a=none"], "two variants are called a"),
        (["--variant", "none=zotta"], "two variants are called none"),
        (["--scenario", "resett"], "no scenario is called resett"),
        (["--corruptions", "rain"], "unknown corruption 'rain'"),
        (["--severity", "6"], "severity 6 does not exist"),
        (["--methods", "tent"], "torch references need --reference CHECKPOINT"),
        (["--model", "nowhere.onnx"], "give both --model and --data"),
        (["--model", "nowhere.onnx", "--data", "."], "nowhere.onnx does not exist"),
        (["--rows", "5000:"], "no image in these --rows"),
        (["--output", "/proc/nothing"], "cannot write to /proc/nothing"),
    ],
)
def test_errors_before_hours_are_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], message: str
) -> None:
    assert main(arguments(tmp_path / "out", *asked)) == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_data_without_the_usual_corruptions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "speckle_noise.npy", np.zeros((5, 8, 8), np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(5, np.int64))
    asked = ["--model", str(embedded.MODEL), "--data", str(tmp_path), "--scenario", "continual"]
    assert main(arguments(tmp_path / "out", *asked)) == 1
    assert "the data holds speckle_noise, name those you want" in capsys.readouterr().err


def test_a_model_behind_a_relative_link(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    shutil.copy(embedded.MODEL, tmp_path / "hidden" / "real.onnx")
    (tmp_path / "model.onnx").symlink_to("hidden/real.onnx")
    asked = ["--model", str(tmp_path / "model.onnx"), "--data", str(embedded.STREAM)]
    assert main(arguments(tmp_path / "out", *asked, "--corruptions", "fog")) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    """All was measured, and no report could be written."""
    data = tmp_path / os.fsdecode(b"caf\xe9.npz")
    data.write_bytes(embedded.STREAM.read_bytes())
    asked = ["--data", str(data), "--model", str(embedded.MODEL), "--images", "16"]
    asked += ["--methods", "none", "--corruptions", "fog", "--shared"]
    assert main(["bench", "--output", str(tmp_path / "out"), *asked]) == 0
    for name in ("results.csv", "report.html", "table.md"):
        assert "caf\\udce9" in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_a_method_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--variant", "deep=zotta;layers=[99]"]
    assert main(arguments(tmp_path / "out", *asked)) == 1
    error = capsys.readouterr().err
    assert "deep does not fit" in error
    assert "99" in error
    assert not list((tmp_path / "out").glob("conditions/*"))


@pytest.mark.parametrize("text", ["[]", "{}", "null", "1", "[" * 100_000, '{"condition": 1}'])
def test_a_damaged_condition_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(ZottaError, match=r"one\.json is damaged: delete it and run again"):
        read_outcomes([tmp_path / "one.json"])


def test_a_damaged_image_is_found_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in range(10):
        folder = tmp_path / "data" / str(label)
        folder.mkdir(parents=True)
        (folder / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    asked = ["--model", str(embedded.MODEL), "--data", str(tmp_path / "data")]
    assert main(arguments(tmp_path / "out", *asked)) == 1
    assert "x.png cannot be decoded" in capsys.readouterr().err


def test_one_run_a_folder(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from zotta_edge.runtime.state.lock import claim

    with claim(finished / "scratch"):
        assert main(arguments(finished)) == 1
    assert "another run writes to" in capsys.readouterr().err


def test_answers_among_the_data_s_classes() -> None:
    """ImageNet-R's way of scoring: the likeliest of the classes that the data has."""
    logits = np.array([[9, 1, 2, 0], [0, 3, 2, 9]], np.float32)
    result = Result(logits.argmax(1), logits, logits, False, None)
    task = object.__new__(Task)
    for name, value in (("labels", [2, 1]), ("among", [1, 2])):
        object.__setattr__(task, name, value)
    assert task.correct(result, 0, 2) == "11"
    object.__setattr__(task, "among", None)
    assert task.correct(result, 0, 2) == "00"


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = capsys.readouterr().out
    for word in ("--dry-run", "reset", "recurring", "ImageNet-C", "conditions/", "--variant"):
        assert word in text
