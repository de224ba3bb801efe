"""Cuts kept beside the model: found again, never trusted blindly, never in the way."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import toy
from onnx import numpy_helper

from zotta_edge.format import Floats
from zotta_edge.runtime.engine import cache
from zotta_edge.runtime.engine import cut as cutting
from zotta_edge.runtime.engine.cache import FOLDER, KEPT
from zotta_edge.runtime.engine.engine import Engine


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return toy.build(tmp_path / "toy.onnx")


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each time a model was really cut."""
    done: list[object] = []
    real = cutting.cut

    def counting(content: bytes, chosen: tuple[int, ...] | None, path: str) -> cutting.Halves:
        done.append(chosen)
        return real(content, chosen, path)

    monkeypatch.setattr(cutting, "cut", counting)
    return done


def _logits(path: Path, chosen: tuple[int, ...] | None = None) -> Floats:
    engine = Engine.open(path, chosen=chosen, threads=1)
    return engine.cone(engine.stem(toy.images(3)), {}).logits


def _files(folder: Path) -> set[str]:
    return {".".join(file.name.split(".")[2:]) for file in folder.iterdir()}


def test_only_the_first_start_cuts(model: Path, cuts: list[object]) -> None:
    first = _logits(model)
    kept = sorted(file.read_bytes() for file in (model.parent / FOLDER).iterdir())
    second = _logits(model)
    assert cuts == [None]
    np.testing.assert_array_equal(first, second)
    assert kept == sorted(file.read_bytes() for file in (model.parent / FOLDER).iterdir())
    assert _files(model.parent / FOLDER) == {"json", "stem.onnx", "cone.onnx"}


def test_other_layers_are_another_cut(model: Path, cuts: list[object]) -> None:
    for chosen in ((1,), (2,), (1,), (2, 1), (1, 2)):
        _logits(model, chosen)
    assert cuts == [(1,), (2,), (2, 1)]


def test_a_changed_model_is_cut_again(model: Path, cuts: list[object]) -> None:
    before = _logits(model)
    content = onnx.load(model)
    head = next(weight for weight in content.graph.initializer if weight.name == "head")
    head.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(head), "head"))
    onnx.save(content, model)
    np.testing.assert_allclose(_logits(model), 2 * before, rtol=1e-5)
    assert cuts == [None, None]


def test_another_version_cuts_again(
    model: Path, cuts: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    _logits(model)
    monkeypatch.setattr(cache, "__version__", "99.0")
    _logits(model)
    assert cuts == [None, None]


def _flip(half: str) -> Callable[[Path], None]:
    """One bit of a weight: the file still loads, and would answer wrongly."""

    def damage(folder: Path) -> None:
        file = next(folder.glob(f"*.{half}.onnx"))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    return damage


def _truncate(folder: Path) -> None:
    file = next(folder.glob("*.cone.onnx"))
    file.write_bytes(file.read_bytes()[:100])


def _remove(folder: Path) -> None:
    next(folder.glob("*.stem.onnx")).unlink()


def _rewrite(text: str) -> Callable[[Path], None]:
    return lambda folder: next(folder.glob("*.json")).write_text(text) and None


@pytest.mark.parametrize(
    "damage",
    [
        *(_flip("stem"), _flip("cone"), _truncate, _remove),
        *(_rewrite(text) for text in ("", "{", "[]", "null", '{"sha256": {}}', "[" * 10**5)),
        _rewrite('{"sha256": {"cone": 1}, "cone_share": 1}'),
    ],
)
def test_a_damaged_cut_is_made_again(
    model: Path, cuts: list[object], damage: Callable[[Path], None]
) -> None:
    before = _logits(model)
    damage(model.parent / FOLDER)
    np.testing.assert_array_equal(_logits(model), before)
    np.testing.assert_array_equal(_logits(model), before)
    assert cuts == [None, None]


def test_a_folder_that_takes_no_cut(model: Path, tmp_path: Path, cuts: list[object]) -> None:
    """A file stands where the cache would go, as good as a medium that may only be read."""
    (tmp_path / FOLDER).write_text("")
    before = _logits(model)
    assert _files(tmp_path / "user" / "zotta-edge") == {"json", "stem.onnx", "cone.onnx"}
    np.testing.assert_array_equal(_logits(model), before)
    assert cuts == [None]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(model: Path, tmp_path: Path, cuts: list[object]) -> None:
    (tmp_path / "user").mkdir()
    tmp_path.chmod(0o555)
    try:
        np.testing.assert_array_equal(_logits(model), _logits(model))
    finally:
        tmp_path.chmod(0o755)
    assert cuts == [None]
    assert not (tmp_path / FOLDER).exists()


def test_a_read_only_cache_that_is_filled(model: Path, cuts: list[object]) -> None:
    """A device image ships the cut; marking its use fails and does not matter."""
    _logits(model)
    folder = model.parent / FOLDER
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        _logits(model)
    finally:
        folder.chmod(0o755)
    assert cuts == [None]


def test_nowhere_to_write(model: Path, tmp_path: Path, cuts: list[object]) -> None:
    """Two halves in memory do as well, and leave nothing behind."""
    expected = _logits(model)
    shutil.rmtree(tmp_path / FOLDER)
    for name in (FOLDER, "user"):
        (tmp_path / name).write_text("")
    np.testing.assert_array_equal(_logits(model), expected)
    assert cuts == [None, None]
    assert {file.name for file in tmp_path.iterdir()} == {"toy.onnx", FOLDER, "user"}


def test_a_full_disk(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as stream:
            stream.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert _logits(model).shape == (3, toy.CLASSES)
    left = [*(tmp_path / FOLDER).iterdir(), *(tmp_path / "user" / "zotta-edge").iterdir()]
    assert left == []


OPEN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import toy
from zotta_edge.runtime.engine.engine import Engine
engine = Engine.open(sys.argv[1], threads=1)
print(engine.cone(engine.stem(toy.images(3)), {}).logits.tobytes().hex())
"""


def _start(model: Path, before: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", before + OPEN, str(model), str(Path(toy.__file__).parent)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_start_together(model: Path, cuts: list[object]) -> None:
    started = [_start(model) for _ in range(4)]
    answers = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 4, answers
    expected = _logits(model).tobytes().hex()
    assert {out.strip() for out, _ in answers} == {expected}
    assert cuts == []
    assert _files(model.parent / FOLDER) == {"json", "stem.onnx", "cone.onnx"}


KILLED = """
import os, signal
from pathlib import Path
real, calls = Path.write_bytes, []
def write_bytes(self, content):
    calls.append(self)
    if len(calls) < {call}:
        return real(self, content)
    real(self, content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
Path.write_bytes = write_bytes
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
@pytest.mark.parametrize("call", [1, 2])
def test_a_writer_that_is_killed(model: Path, cuts: list[object], call: int) -> None:
    process = _start(model, KILLED.format(call=call))
    process.communicate(timeout=120)
    assert process.returncode == -9
    folder = model.parent / FOLDER
    (part,) = folder.glob(".*.part")
    assert not list(folder.glob("*.json"))
    assert _logits(model).shape == (3, toy.CLASSES)
    assert cuts == [None]
    assert not part.exists()


def test_what_nobody_writes_again_is_removed_in_the_end(model: Path) -> None:
    folder = model.parent / FOLDER
    _logits(model)
    part = folder / f".{model.stem}.{24 * '0'}.cone.onnx.abcdefgh.part"
    part.touch()
    _logits(model, (1,))
    assert part.exists()  # its writer might be alive
    os.utime(part, (0, 0))
    _logits(model, (2,))
    assert not part.exists()


def test_old_cuts_are_forgotten(model: Path, cuts: list[object]) -> None:
    """The least recently used go first; other models' cuts stay."""
    folder, other = model.parent / FOLDER, toy.build(model.with_name("toy.b.onnx"))
    _logits(other)
    _logits(model, (0,))
    for chosen in ((1,), (2,), (3,), (0, 1), (0, 2), (0, 3)):
        _logits(model, (1,))  # in use all the time
        _logits(model, chosen)
    records = list(folder.glob("toy." + 24 * "?" + ".json"))
    assert len(records) == KEPT
    assert len(list(folder.glob("toy.b.*"))) == 3
    assert len(list(folder.iterdir())) == 3 * (KEPT + 1)
    cuts.clear()
    _logits(model, (1,))
    _logits(other)
    assert cuts == []
    _logits(model, (0,))
    assert cuts == [(0,)]


def test_the_record_is_plain(model: Path) -> None:
    _logits(model)
    record = json.loads(next((model.parent / FOLDER).glob("*.json")).read_text())
    assert set(record) == {"cone_share", "sha256"}
    assert 0 < record["cone_share"] < 1
