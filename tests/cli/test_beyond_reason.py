"""Paths, numbers and streams beyond reason: one line, and no memory."""

import sys
from pathlib import Path

import pytest
from commands import DATA, MODEL, in_a_process, write_image

from zotta_edge.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["adapt", *DATA, "--state", "."], "it is a folder"),
        (["adapt", *DATA, "--state", "/"], "it is a folder"),
        (["generate", "--prompt", "how many?", "--state", "."], "it is a folder"),
        (["adapt", *MODEL, "--data", "camera:" + "9" * 20], "does not exist"),
        (["adapt", *MODEL, "--data", "~nobody-of-that-name/photos"], "does not exist"),
        (["calibrate", *MODEL[1:], "--source", "x", "--layers", "0-99999999999"], "no list"),
        (["calibrate", *MODEL[1:], "--source", "x", "--layers", "9" * 5000], "no list"),
        (["export", *MODEL[1:], "-o", "x.onnx", "--size", "\u00b2"], "not a size"),
        (["export", *MODEL[1:], "-o", "x.onnx", "--size", "9" * 5000], "not a size"),
        (["adapt", "--set", "budget=" + "9" * 400], "expected a number"),
    ],
)
def test_paths_and_numbers_beyond_reason(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They ended in a traceback, or in as many numbers as memory holds."""
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said.replace("no list", "is not a list of layers") in line


@pytest.mark.parametrize("flag", ["--limit", "--batch-size", "--threads"])
def test_counts_beyond_reason(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["adapt", *DATA, flag, "1" + "0" * 30])
    assert "is not from 1 to 1000000000" in capsys.readouterr().err


def test_more_classes_than_there_are(tmp_path: Path) -> None:
    """The header named as many columns as were asked for."""
    output = tmp_path / "out.csv"
    write_image(tmp_path / "a.png")
    assert main(["adapt", *MODEL, "--data", str(tmp_path), "--top-k", "1000000000",
                 "--output", str(output)]) == 0  # fmt: skip
    header, row = (line.split(",") for line in output.read_text().splitlines())
    assert len(header) == len(row) == 2 + 2 * 10


@pytest.mark.skipif(sys.platform != "linux", reason="there are devices to name")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["adapt", *MODEL, "--data", "-"], "stdin has a line of 65536 characters"),
        (["generate", "--prompt", "-"], "at most 3072 fit the context of 96 tokens"),
    ],
)
def test_standard_input_without_end(command: list[str], said: str) -> None:
    with Path("/dev/zero").open("rb") as zeros:
        done = in_a_process(command, stdin=zeros)
    assert done.returncode == 1
    assert said in done.stderr.decode().splitlines()[-1]


def test_bytes_on_standard_input_that_are_no_text() -> None:
    done = in_a_process(["generate", "--prompt", "-"], input=b"how \xff many?")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert "the prompt is no text" in line
