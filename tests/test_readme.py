"""What the README shows is what happens."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def workplace(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the README's commands name: a real DeiT-Ti and real photographs."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copy(shared_data / "deit-tiny" / "deit_tiny_fp32.onnx", folder / "deit_tiny.onnx")
    photos = sorted((shared_data / "imagenet-val-2000").glob("*.jpg"))
    for name, part in (("photos", photos[-16:]), ("stream", photos[:8])):
        (folder / name).mkdir()
        for photo in part:
            (folder / name / photo.name).symlink_to(photo)
    lines = (shared_data / "imagenet-val-2000" / "labels.csv").read_text().splitlines()
    (folder / "labels.csv").write_text("\n".join(lines[:9]) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)  # it primes a real model: minutes, and many on a busy machine
def test_your_own_model(workplace: Path) -> None:
    commands = [
        line.split("#")[0].strip()
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("zotta-edge ") and not line.startswith("zotta-edge serve")
    ]
    assert [command.split()[1] for command in commands][:3] == ["export", "calibrate", "adapt"]
    for command in commands:
        arguments = [sys.executable, "-m", "zotta_edge", *command.split()[1:]]
        done = subprocess.run(arguments, cwd=workplace, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert (workplace / "report.json").exists()


def test_python_api(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (workplace / "deit_int8.onnx").exists():
        pytest.skip("the commands above did not make the model")
    monkeypatch.chdir(workplace)
    (code,) = blocks("python")
    images = np.random.default_rng(0).integers(0, 256, (4, 224, 224, 3), dtype=np.uint8)
    exec(code, {"images": images})
    assert (workplace / "site-7.state").exists()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE)
    assert targets == ["run", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)
