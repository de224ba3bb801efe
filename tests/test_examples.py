"""The examples run as they stand, in a process of their own, and show what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import served

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(folder: Path, name: str, *arguments: object) -> str:
    """What an example prints."""
    command = [sys.executable, EXAMPLES / f"{name}.py", *arguments]
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def percentages(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", line)]


def test_embed_in_a_loop(tmp_path: Path) -> None:
    lines = run(tmp_path, "embed_in_a_loop").splitlines()
    assert len(lines) == 6
    assert all(percentages(line)[0] > 60 for line in lines[:5])  # 45 % without adaptation
    assert int(re.findall(r"(\d+) steps", lines[5])[0]) > 1000  # of 1,079 images


def test_changing_weather(tmp_path: Path) -> None:
    told = run(tmp_path, "changing_weather", "--save", "film.avi")
    assert (tmp_path / "film.avi").stat().st_size > 100_000
    scenes = [line for line in told.splitlines() if not line.startswith(" ")]
    assert [line.split(":")[0] for line in scenes] == ["clear", "fog", "frost", "clear"]
    for scene in scenes[1:3]:
        adapted, plain = percentages(scene)
        assert adapted > plain + 10, scene
    adapted, plain = percentages(scenes[3])
    assert adapted > plain - 5, "fair weather again, and it has not forgotten"
    assert re.search(r"^  filter: none -> contrast", told, re.MULTILINE)
    assert re.search(r"^  changed: ", told, re.MULTILINE)


def test_ask_with_tritonclient(tmp_path: Path) -> None:
    with served.serving() as server:
        told = run(tmp_path, "ask_with_tritonclient", f"127.0.0.1:{server.port}")
    assert "'datatype': 'FP32'" in told
    assert re.search(r"steps \d+, filter contrast, drift", told)


@pytest.mark.slow
def test_export_a_torch_model(tmp_path: Path) -> None:
    told = run(tmp_path, "export_a_torch_model", tmp_path)
    plain, adapted = (percentages(line)[0] for line in told.splitlines()[-2:])
    assert adapted > plain + 5
    assert {"net.pth", "net.onnx"} <= {path.name for path in tmp_path.iterdir()}


def test_plot_accuracy(tmp_path: Path) -> None:
    import cv2

    run(tmp_path, "plot_accuracy", "accuracy.png")
    picture = cv2.imread(str(tmp_path / "accuracy.png"))
    assert picture.shape[1] == 800
    assert picture.std() > 10


def test_every_example_is_run() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested
