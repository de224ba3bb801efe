"""States on disk: saved, restored, damaged, and by whom they may be used."""

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import served
from served import ADAPTATION, NAME

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded
from zotta_edge.runtime.service.learning.snapshots import KEPT, Store


def test_killed_and_restarted_it_goes_on_from_the_last_save(images: Any, tmp_path: Path) -> None:
    flags = ("--state", tmp_path, "--save-every", "2", "--deadline", "60")
    with served.serving(*flags) as server:
        served.feed(server, images[:128])
        before = server.get(ADAPTATION)
        server.stop(signal.SIGKILL)
    with served.serving(*flags) as server:
        after = server.get(ADAPTATION)
        assert before["steps"] - 2 <= after["steps"] <= before["steps"]
        assert after["steps"] > 0
        assert after["distance"] > 0
        assert after["phase"] == "adapting"
        served.feed(server, images[128:160])
        assert server.get(ADAPTATION)["steps"] == after["steps"] + 2


@pytest.mark.slow
def test_stopped_and_restarted_it_goes_on_exactly_where_it_was(images: Any, tmp_path: Path) -> None:
    with served.serving("--state", tmp_path / "new" / "folder", "--deadline", "60") as server:
        served.feed(server, images[:96])
        before = server.get(ADAPTATION)
        taken = server.post(f"{ADAPTATION}/snapshots")
        assert server.stop() == 0
    with served.serving("--state", tmp_path / "new" / "folder") as server:
        after = server.get(ADAPTATION)
        for key in ("steps", "images", "distance", "drift", "phase", "guard", "layers"):
            assert after[key] == before[key]
        assert server.get(f"{ADAPTATION}/snapshots")["snapshots"] == [taken]
        server.post(f"{ADAPTATION}/reset")
        server.stop(signal.SIGKILL)
    with served.serving("--state", tmp_path / "new" / "folder") as server:
        assert server.get(ADAPTATION)["steps"] == 0, "a reset outlives a crash"


@pytest.fixture(scope="module")
def state(images: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A good one."""
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    for at in range(0, 64, 16):
        model.predict(images[at : at + 16])
    path = tmp_path_factory.mktemp("state") / "good"
    model.save_state(path)
    return path.read_bytes()


def test_a_state_of_the_library_is_taken_up(state: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.state").write_bytes(state)
    with served.serving("--state", tmp_path) as server:
        assert server.get(ADAPTATION)["steps"] > 0


@pytest.mark.parametrize("damage", ["truncated", "noise", "empty", "flipped"])
def test_a_damaged_state_is_put_aside(
    images: Any, state: bytes, tmp_path: Path, damage: str
) -> None:
    flipped = state[:-1] + bytes([state[-1] ^ 1])
    harm = {"truncated": state[:999], "noise": b"x" * 999, "empty": b"", "flipped": flipped}
    (tmp_path / f"{NAME}.state").write_bytes(harm[damage])
    with served.serving("--state", tmp_path) as server:
        assert server.get(ADAPTATION)["steps"] == 0
        assert any("starting from the source" in line for line in server.lines)
        (aside,) = tmp_path.glob("*.unusable-*")
        assert aside.read_bytes() == harm[damage]
        served.feed(server, images[:32])


def test_off_leaves_the_state_alone(images: Any, state: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.state").write_bytes(state)
    with served.serving("--state", tmp_path, "--adapt", "off") as server:
        served.feed(server, images[:16])
        server.post(f"{ADAPTATION}/snapshots")
        server.post(f"{ADAPTATION}/reset")
        assert server.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.state"]
    assert (tmp_path / f"{NAME}.state").read_bytes() == state


def test_a_snapshot_outlives_a_clock_that_went_back(tmp_path: Path) -> None:
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    store = Store(tmp_path, "digits", 1)
    for day in range(1, KEPT + 1):
        (tmp_path / "digits.snapshots" / f"209901{day:02}T000000000Z-1.state").touch()
    (tmp_path / "digits.snapshots" / "20990199T000000000Z-1.state").touch()  # no such day
    taken = store.take(model)
    kept = [one.id for one in store.snapshots()]
    assert (len(kept), kept[-1]) == (KEPT, taken.id)
    store.restore(model, taken.id)
    store.close()


def test_what_only_looks_like_a_snapshot_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder among them had every snapshot from the twentieth on answered with 500."""
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    store = Store(tmp_path, NAME, 1)
    folder = tmp_path / f"{NAME}.snapshots" / "20260101T000000000Z-1.state"
    folder.mkdir()
    assert store.snapshots() == []
    folder.rmdir()
    folder.touch()

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    for _ in range(KEPT + 1):
        assert store.take(model).bytes > 0
    store.close()


def test_one_process_a_state(tmp_path: Path) -> None:
    with served.serving("--state", tmp_path):
        command = [sys.executable, "-m", "zotta_edge", "serve", "--port", "0", "--state", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "in use by another process" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux's prlimit")
def test_a_full_disk_is_no_reason_to_stop(images: Any, tmp_path: Path) -> None:
    flags = ("--state", tmp_path, "--save-every", "1", "--deadline", "60")
    with served.serving(*flags) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        served.feed(server, images[:64])
        assert server.get(ADAPTATION)["steps"] > 0
        reply = server.request("POST", f"{ADAPTATION}/snapshots")
        assert reply.status == 507
        assert str(tmp_path) not in reply.json["error"]
        assert server.post(f"{ADAPTATION}/reset")["steps"] == 0
        assert server.stop() == 0
        assert any("cannot write" in line for line in server.lines)
        assert not any("Traceback" in line for line in server.lines)
    assert not list(tmp_path.glob(".*.part"))
