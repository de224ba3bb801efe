"""The command line as a person runs it, for files and options that nobody should give it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from zotta_edge.models import embedded

MODEL = ["--model", str(embedded.MODEL)]
DATA = [*MODEL, "--data", str(embedded.STREAM)]


def write_image(path: bytes | Path) -> None:
    data = cv2.imencode(".png", np.zeros((32, 32), np.uint8))[1].tobytes()
    with open(path, "wb") as stream:
        stream.write(data)


def in_a_process(command: Sequence[str | Path], **options: Any) -> Any:
    """One of its own, whose streams take text as they do for a person."""
    environment = os.environ | {"PYTHONUTF8": "1"}
    whole = [sys.executable, "-m", "zotta_edge", *command, "--threads", "1"]
    return subprocess.run(whole, env=environment, capture_output=True, **options)


def adapt(*flags: str | Path, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    done = in_a_process(["adapt", *MODEL, *flags], input=given)
    assert done.returncode == 0, done.stderr
    return done  # type: ignore[no-any-return]
