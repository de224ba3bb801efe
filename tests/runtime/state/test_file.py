"""State files: whole, of the right model, or refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.state import file as states

MODEL = "f" * 64


def arrays() -> dict[str, NDArray[np.generic]]:
    return {
        "theta": np.linspace(0, 1, 50, dtype=np.float32),
        "drift.mean": np.linspace(0, 1, 7),
        "counts": np.array([1, 2, 3]),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "site.state"
    states.save(path, arrays(), MODEL, "zotta")
    return path


def load(path: Path, **changes: object) -> dict[str, NDArray[np.generic]]:
    return states.load(path, **{"like": arrays(), "model": MODEL, "method": "zotta"} | changes)


def test_round_trip_is_exact(saved: Path) -> None:
    loaded = load(saved)
    assert loaded.keys() == arrays().keys()
    for name, array in arrays().items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    assert [path.name for path in saved.parent.iterdir()] == ["site.state"]


def test_every_flipped_byte_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        saved.write_bytes(damaged)
        with pytest.raises(ZottaError):
            load(saved)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(saved: Path, keep: int) -> None:
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(ZottaError, match="damaged"):
        load(saved)


def test_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(ZottaError, match="another model"):
        load(saved, model="0" * 64)


def test_another_method_is_refused(saved: Path) -> None:
    with pytest.raises(ZottaError, match="method zotta, not of none"):
        load(saved, method="none")


def test_other_shapes_are_refused(saved: Path) -> None:
    with pytest.raises(ZottaError, match="other settings"):
        load(saved, like=arrays() | {"theta": np.zeros(51, np.float32)})


def test_a_newer_format_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(states, "FORMAT_VERSION", "3")
        states.save(saved, arrays(), MODEL, "zotta")
    with pytest.raises(ZottaError, match="state format 3, this version reads 1 and 2"):
        load(saved)


def test_an_unknown_field_is_refused(saved: Path) -> None:
    like = arrays()
    del like["theta"]
    with pytest.raises(ZottaError, match="holds theta, which this version does not know"):
        load(saved, like=like)


def test_a_missing_field_is_refused(saved: Path) -> None:
    with pytest.raises(ZottaError, match=r"lacks trust: use a new state file"):
        load(saved, like=arrays() | {"trust": np.ones(1)})


def test_only_a_whole_row_of_a_table_may_be_missing(saved: Path) -> None:
    median = {"tried[median].mean": np.ones(2), "tried[median].samples": np.ones(1)}
    assert load(saved, like=arrays() | median).keys() == arrays().keys()
    states.save(saved, arrays() | {"tried[median].mean": np.ones(2)}, MODEL, "zotta")
    with pytest.raises(ZottaError, match=r"lacks tried\[median\].samples"):
        load(saved, like=arrays() | median)


def test_missing_and_unwritable_paths(tmp_path: Path) -> None:
    with pytest.raises(ZottaError, match="does not exist"):
        load(tmp_path / "nothing.state")
    with pytest.raises(ZottaError, match="is not a file"):
        load(tmp_path)
    with pytest.raises(ZottaError, match="no folder"):
        states.save(tmp_path / "nowhere" / "site.state", arrays(), MODEL, "zotta")


def test_a_failed_save_leaves_the_old_state(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ZottaError, match="No space left"):
        states.save(saved, arrays(), MODEL, "zotta")
    load(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["site.state"]
