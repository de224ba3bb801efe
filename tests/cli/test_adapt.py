"""`zotta-edge adapt` as a person uses it: inputs, results, interruption, bad input."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from zotta_edge import AdaptiveModel
from zotta_edge.__main__ import main
from zotta_edge.errors import ZottaError

COUNT = 48


@pytest.fixture(scope="module")
def site(residual_net: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a calibrated model, images, their labels and a drifted stream."""
    folder = tmp_path_factory.mktemp("site")
    onnx.save(residual_net, folder / "net.onnx")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    labels = rng.integers(0, 5, COUNT)
    np.savez(folder / "clean.npz", images=images, labels=labels)
    np.savez(folder / "dark.npz", images=images // 4, labels=labels)
    (folder / "photos").mkdir()
    rows = [["file", "label"]]
    for index, image in enumerate(images):
        cv2.imwrite(str(folder / "photos" / f"{index:02}.png"), image)
        rows.append([f"{index:02}.png", str(labels[index])])
    with (folder / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    export = ["export", "net.onnx", "-o", "model.onnx", "--mean", "0.5", "--std", "0.25"]
    calibrate = ["calibrate", "model.onnx", "--source", "clean.npz", "--samples", "32"]
    for command in (export, [*calibrate, "--layers", "1"]):
        done = run(command, folder)
        assert done.returncode == 0, done.stderr
    done = run([*export[:3], "uncalibrated.onnx", *export[4:]], folder)
    assert done.returncode == 0, done.stderr
    return folder


def run(arguments: list[str], folder: Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zotta_edge", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def adapt(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return run(["adapt", "--model", "model.onnx", *arguments], folder, **options)


def test_report_has_its_stable_keys(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = adapt(site, "--data", "dark.npz", "--batch-size", "8", "--report", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["images"] == COUNT
    for key in ("passes", "time_ratio", "steps", "drift", "guard", "settings", "versions", "seed"):
        assert report[key] is not None
    assert "memory_ratio" in report
    assert report["model"]["precision"] == "int8"
    assert 0 <= report["accuracy"]["adapted"] <= 1
    assert 0 <= report["accuracy"]["unadapted"] <= 1
    assert "accuracy   adapted" in done.stdout


def test_always_adapts_on_every_batch_and_counts_its_passes(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    flags = ["--method", "zotta", "--always", "--set", "pairs=3", "--batch-size", "8"]
    flags += ["--report", str(path)]
    assert adapt(site, "--data", "dark.npz", *flags).returncode == 0
    report = json.loads(path.read_text())
    assert report["steps"] == COUNT / 8
    assert 1 < report["passes"] <= 7  # stem once, cone for 2 k perturbations and the answer


def test_predictions_as_csv_and_jsonl(site: Path, tmp_path: Path) -> None:
    common = ["--data", "photos", "--labels", "labels.csv", "--top-k", "2", "--no-baseline"]
    assert adapt(site, *common, "--output", str(tmp_path / "p.csv")).returncode == 0
    assert adapt(site, *common, "--output", str(tmp_path / "p.jsonl")).returncode == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows] == [f"{index:02}.png" for index in range(COUNT)]
    for row, line in zip(rows, lines, strict=True):
        assert int(row["label"]) == line["label"] == line["top"][0]["label"]
        assert line["top"][0]["confidence"] >= line["top"][1]["confidence"]
        assert row["adapted"] in ("0", "1")


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
def test_predictions_on_stdout(layout: str, site: Path, tmp_path: Path) -> None:
    """They equal a file's, and nothing else comes with them."""
    file = tmp_path / f"p.{layout}"
    assert adapt(site, "--data", "photos", "--output", str(file)).returncode == 0
    done = adapt(site, "--data", "photos", "--output", "-", "--format", layout, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == file.read_text().splitlines()
    assert "\r" not in done.stdout
    assert json.loads(done.stderr)["images"] == COUNT
    paths = "".join(f"photos/{index:02}.png\n" for index in range(3))
    piped = adapt(site, "--data", "-", "--output", "-", input=paths)
    assert [line.split(",")[0] for line in piped.stdout.splitlines()] == [
        "image", *paths.split()]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "flags", "compared"),
    [
        ("photos", [], False),
        ("photos", ["--baseline"], True),
        ("photos", ["--labels", "labels.csv"], True),
        ("clean.npz", [], True),
        ("clean.npz", ["--no-baseline"], False),
    ],
)
def test_the_unadapted_model_runs_where_there_is_something_to_compare(
    data: str, flags: list[str], compared: bool, site: Path
) -> None:
    done = adapt(site, "--data", data, "--json", *flags)
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["seconds"]["unadapted"] is not None) == compared


def test_labels_as_people_write_them(site: Path, tmp_path: Path) -> None:
    """Class folders by number and by name, a CSV of names, and images that have no label."""
    rows = list(csv.DictReader((site / "labels.csv").open()))
    names = ("ant", "bee", "cat", "dog", "elk")
    (tmp_path / "names.txt").write_text("\n".join(names))
    exported = tmp_path / "named.onnx"
    export = ["export", "net.onnx", "-o", str(exported), "--mean", "0.5", "--std", "0.25"]
    calibrate = ["calibrate", str(exported), "--source", "clean.npz", "--layers", "1"]
    for command in ([*export, "--labels", str(tmp_path / "names.txt")], calibrate):
        assert run(command, site).returncode == 0
    for row in rows:
        for folder in (row["label"], names[int(row["label"])]):
            kind = "numbered" if folder.isdecimal() else "named"
            target = tmp_path / kind / folder / row["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to((site / "photos" / row["file"]).resolve())
    named = [f"{row['file']},{names[int(row['label'])]}\n" for row in rows]
    (tmp_path / "some.csv").write_text("".join(named[:-8]) + "".join(
        f"{row['file']},-1\n" for row in rows[-8:]))  # fmt: skip

    def scored(*arguments: str) -> tuple[int, float]:
        command = ["adapt", "--model", str(exported), "--method", "none", "--json", *arguments]
        done = run(command, site)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        return report["scored"], report["accuracy"]["adapted"]

    expected = scored("--data", "photos", "--labels", "labels.csv")
    assert expected[0] == COUNT
    assert scored("--data", str(tmp_path / "numbered")) == expected
    assert scored("--data", str(tmp_path / "named")) == expected
    assert scored("--data", "photos", "--labels", str(tmp_path / "some.csv"))[0] == COUNT - 8
    (tmp_path / "some.csv").write_text("".join(named).replace(",dog", ",dgo"))
    bad = ["--data", "photos", "--labels", str(tmp_path / "some.csv")]
    assert_refused(run(["adapt", "--model", str(exported), *bad], site), "did you mean 'dog'?")


def test_paths_on_stdin_and_an_unreadable_image(site: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    paths = f"photos/00.png\n{tmp_path / 'broken.jpg'}\nphotos/01.png\n"
    flags = ["--data", "-", "--output", str(tmp_path / "p.csv")]
    done = adapt(site, *flags, input=paths)
    assert done.returncode == 0, done.stderr
    assert "broken.jpg" in done.stderr
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 3
    strict = adapt(site, *flags, "--strict", input=paths)
    assert_refused(strict, "broken.jpg")


def test_two_halves_with_a_state_equal_the_whole(site: Path, tmp_path: Path) -> None:
    images = np.load(site / "dark.npz")["images"]
    whole = AdaptiveModel.load(site / "model.onnx", _always())
    expected = [whole.predict(images[i : i + 8]).logits for i in range(0, COUNT, 8)]
    for name, part in (("a", images[:24]), ("b", images[24:])):
        np.savez(tmp_path / f"{name}.npz", images=part)
        flags = ["--always", "--batch-size", "8", "--state", str(tmp_path / "s.state")]
        done = adapt(site, "--data", str(tmp_path / f"{name}.npz"), *flags, "--no-baseline")
        assert done.returncode == 0, done.stderr
    resumed = AdaptiveModel.load(site / "model.onnx", _always())
    resumed.load_state(tmp_path / "s.state")
    follow = images[:8]
    np.testing.assert_array_equal(whole.predict(follow).logits, resumed.predict(follow).logits)
    assert len(expected) == COUNT // 8


def _always():
    from zotta_edge import Settings

    return Settings(always=True)


def test_ctrl_c_saves_and_exits_cleanly(site: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (60000, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "long.npz", images=images)
    state, output = tmp_path / "s.state", tmp_path / "p.csv"
    arguments = ["adapt", "--model", "model.onnx", "--data", str(tmp_path / "long.npz")]
    flags = ["--always", "--batch-size", "4", "--state", str(state), "--output", str(output)]
    process = subprocess.Popen(
        [sys.executable, "-m", "zotta_edge", *arguments, *flags],
        cwd=site,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(lambda: list(tmp_path.glob(".p.csv.*.part")))
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "interrupted" in out
    assert "Traceback" not in err
    assert state.exists()
    assert 1 < len(output.read_text().splitlines()) < 60000
    assert not list(tmp_path.glob(".*.part"))


def _wait_for(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("part", ["configure", "run"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, ImportError, ZottaError])
def test_ctrl_c_while_modules_are_imported(
    part: str,
    kind: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the middle of NumPy's import, it comes out as an ImportError about a bad installation."""

    def interrupted(_: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise kind from None

    monkeypatch.setattr(f"zotta_edge.cli.inspect.{part}", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert main(["inspect", "model.onnx"]) == 130
    assert capsys.readouterr().err == "zotta-edge: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_second_process_with_the_same_state_is_refused(site: Path, tmp_path: Path) -> None:
    from zotta_edge.runtime.state.lock import claim

    with claim(tmp_path / "s.state"):
        done = adapt(site, "--data", "clean.npz", "--state", str(tmp_path / "s.state"))
    assert_refused(done, "in use")


BAD = {
    "calibrate": ["--model", "uncalibrated.onnx", "--data", "clean.npz"],
    "no images": ["--model", "model.onnx", "--data", "empty"],
    "does not exist": ["--model", "nowhere.onnx", "--data", "clean.npz"],
    "was not made by zotta-edge": ["--model", "net.onnx", "--data", "clean.npz"],
    "`zotta-edge calibrate adaptable.onnx --source DIR --prime`": ["--model", "net.onnx"],
    "both --model and --data": ["--model", "model.onnx"],
    "no method is called": ["--model", "model.onnx", "--data", "clean.npz", "--method", "magic"],
    "provider": ["--model", "model.onnx", "--data", "clean.npz", "--provider", "cuda"],
    ".csv or a .jsonl": ["--model", "model.onnx", "--data", "clean.npz", "--output", "p.xml"],
    "pears": ["--model", "model.onnx", "--data", "clean.npz", "--set", "pears=3"],
    "state": ["--model", "model.onnx", "--data", "clean.npz", "--state", "nowhere/s.state"],
    "no label for": ["--model", "model.onnx", "--data", "photos", "--labels", "other.csv"],
    "damaged": ["--model", "model.onnx", "--data", "clean.npz", "--state", "damaged.state"],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message: str, site: Path) -> None:
    (site / "empty").mkdir(exist_ok=True)
    (site / "other.csv").write_text("file,label\ncat.jpg,1\ndog.jpg,2\n")
    (site / "damaged.state").write_bytes(b"nothing of use")
    assert_refused(run(["adapt", *BAD[message]], site), message)


def assert_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 1, done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("zotta-edge: error:")
    assert message in last
    assert "Traceback" not in done.stderr


def test_demonstration_shows_a_gain(capsys) -> None:
    assert main(["adapt", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"]["adapted"] > report["accuracy"]["unadapted"] + 0.02
    events = {event["kind"]: event for event in report["events"]}
    assert (events["filter"]["before"], events["filter"]["after"]) == ("none", "contrast")
    assert events["filter"]["images"] < 32
    assert events["phase"]["reason"].startswith("watching -> adapting: drift ")


def test_a_reader_that_goes_away_is_no_error() -> None:
    adapt = [sys.executable, "-m", "zotta_edge", "adapt", "--output", "-"]
    with subprocess.Popen(adapt, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert b"error" not in process.stderr.read()
    assert process.returncode == 141
