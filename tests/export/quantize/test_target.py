"""Targets: the machine is recognised by what its CPU says, and unknown ones get the safe recipe."""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from zotta_edge.errors import ZottaError
from zotta_edge.export.quantize import target


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Be another machine."""

    def be(machine: str, flags: str, model: str = "Some CPU") -> None:
        (tmp_path / "cpuinfo").write_text(f"model name\t: {model}\nflags\t\t: {flags}\n")
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(target, "CPUINFO", tmp_path / "cpuinfo")

    return be


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "fpu sse4_2 avx2", "avx2"),
        ("x86_64", "fpu avx2 avx512f avx512_vnni", "vnni"),
        ("x86_64", "fpu avx2 avx_vnni", "vnni"),
        ("AMD64", "", "avx2"),  # Windows says nothing about flags
        ("aarch64", "", "arm64"),
        ("arm64", "", "arm64"),  # macOS
    ],
)
def test_machine_is_recognised(
    machine: str, flags: str, expected: str, pretend: Callable[..., None]
) -> None:
    pretend(machine, flags)
    assert target.detect_target() == expected
    assert target.resolve_target("auto") == expected
    assert target.resolve_target("vnni") == "vnni"


def test_unknown_target_is_refused_with_the_choices() -> None:
    with pytest.raises(ZottaError, match="unknown target sse.*auto, avx2, vnni, arm64"):
        target.resolve_target("sse")


def test_machine_is_described_in_one_line(pretend: Callable[..., None]) -> None:
    pretend("x86_64", "fpu avx2 avx512f avx512_vnni", "Xeon 8375C")
    line = target.describe_machine()
    assert "Xeon 8375C" in line
    assert "avx2 avx512_vnni avx512f" in line
    assert "\n" not in line


def test_a_system_without_cpuinfo_still_has_a_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(target, "CPUINFO", tmp_path / "missing")
    assert target.detect_target() == "avx2"
    assert "no known flags" in target.describe_machine()
