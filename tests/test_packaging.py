"""What is shipped: every tracked module, installable and runnable away from the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {  # top-level folder -> package inside the wheel
    "export": "zotta_edge/export",
    "runtime": "zotta_edge/runtime",
    "calibration": "zotta_edge/calibration",
    "models": "zotta_edge/models",
    "src/zotta_edge": "zotta_edge",
}


def tracked() -> set[str]:
    """The path inside the wheel of every tracked file of the package."""
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return {
        path.replace(folder, package, 1)
        for path in listed
        for folder, package in FOLDERS.items()
        if path.startswith(f"{folder}/")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built through the sdist, as `pip install` from a registry would."""
    out = tmp_path_factory.mktemp("dist")
    clone = tmp_path_factory.mktemp("clone") / "zotta-edge"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    subprocess.run([sys.executable, "-m", "build", "-o", str(out), str(clone)], check=True)
    assert len(list(out.glob("*.tar.gz"))) == 1
    return next(out.glob("*.whl"))


@pytest.mark.slow
def test_wheel_holds_every_tracked_module(wheel: Path) -> None:
    committed = {name for name in tracked() if not name.endswith(".gitkeep")}
    with zipfile.ZipFile(wheel) as archive:
        assert committed <= set(archive.namelist())


@pytest.mark.slow
def test_wheel_installs_and_runs_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """The wheel alone, dependencies from the running environment, outside the checkout."""
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", str(target), str(wheel)],
        check=True,
    )
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import zotta_edge, runpy; " + (
        f"assert zotta_edge.__file__.startswith({str(target)!r}); sys.argv = ['zotta-edge', "
        "'--version']; runpy.run_module('zotta_edge', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("zotta-edge ")
