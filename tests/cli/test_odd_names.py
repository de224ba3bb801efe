"""Names of files that are not UTF-8, or act on a terminal."""

import json
import os
import sys
from pathlib import Path

import pytest
from commands import MODEL, adapt, write_image

from zotta_edge.__main__ import main
from zotta_edge.models import embedded


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_names_that_are_not_utf8(tmp_path: Path, kind: str) -> None:
    """They ended `adapt --output` in a traceback."""
    folder = tmp_path / "photos"
    folder.mkdir()
    write_image(os.fsencode(folder) + b"/caf\xe9.png")
    (folder / os.fsdecode(b"b\xe4d.png")).write_bytes(b"no image")
    output = tmp_path / f"out.{kind}"
    done = adapt("--data", folder, "--output", output)
    assert b"skipped" in done.stderr
    text = output.read_text(encoding="utf-8")
    assert "caf\\udce9.png" in text
    if kind == "jsonl":
        assert os.fsencode(json.loads(text)["image"]) == b"caf\xe9.png"


def test_names_that_act_on_a_terminal_or_forge_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "b\nzotta-edge: error: \x1b[2Jc.png").write_bytes(b"no image")
    command = ["adapt", *MODEL, "--data", str(tmp_path)]
    assert main(command) == 0
    assert "b\\nzotta-edge: error: \\x1b[2Jc.png is not a JPEG" in capsys.readouterr().err
    assert main([*command, "--strict"]) == 1
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_a_model_whose_name_is_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's answer to that was a page."""
    path = tmp_path / os.fsdecode(b"caf\xe9.onnx")
    path.write_bytes(embedded.MODEL.read_bytes())
    assert main(["inspect", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not UTF-8" in line


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_such_names_on_standard_input(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    write_image(name)
    output = tmp_path / "out.csv"
    adapt("--data", "-", "--output", output, given=name + b"\n")
    assert "caf\\udce9.png" in output.read_text()
