"""One process a state file."""

import subprocess
import sys
from pathlib import Path

import pytest

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.state.lock import claim

CLAIM = """
import sys
from zotta_edge.errors import ZottaError
from zotta_edge.runtime.state.lock import claim
try:
    with claim(sys.argv[1]):
        print("claimed", flush=True)
        sys.stdin.readline()
except ZottaError as error:
    print(error, flush=True)
"""


def claiming(path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    path = tmp_path / "site.state"
    first = claiming(path)
    assert first.stdout is not None
    assert first.stdout.readline() == "claimed\n"
    second, _ = claiming(path).communicate("\n")
    assert "in use by another process" in second
    first.kill()  # no chance to clean up
    first.wait()
    with claim(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(ZottaError, match="cannot keep a state"),
        claim(tmp_path / "nowhere" / "site.state"),
    ):
        pass
