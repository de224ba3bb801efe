"""Files that a person, a disk or an attacker spoilt: one line each, and nothing left behind."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import model_files
import numpy as np
import onnx
import pytest
from commands import write_image
from onnx import TensorProto

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.__main__ import main
from zotta_edge.files import replacing
from zotta_edge.models import embedded
from zotta_edge.runtime.io.arrays import load_images
from zotta_edge.runtime.io.labels import read_labels
from zotta_edge.runtime.io.layouts import open_images
from zotta_edge.sessions import has_external_data, open_session


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_devices_among_the_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    write_image(tmp_path / "file.png")
    os.mkfifo(tmp_path / "pipe.npy")
    command = ["adapt", "--model", str(embedded.MODEL), "--threads", "1", "--data"]
    assert main([*command, str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("is not a file") == 2
    with pytest.raises(ZottaError, match=r"pipe.npy is not a file"):
        load_images(tmp_path / "pipe.npy")


@pytest.mark.skipif(sys.platform != "linux", reason="there are devices to name")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["adapt", "--labels", "{zeros}.csv"], "larger than 64 MB"),
        (["adapt", "--settings", "{zeros}.toml"], "larger than 64 MB"),
        (["adapt", "--model", str(embedded.MODEL), "--data", "{zeros}.csv"], "larger than 64 MB"),
        (["serve", "--config", "{zeros}.toml"], "larger than 64 MB"),
        (["serve", "--token-file", "{zeros}.csv"], "larger than 64 MB"),
        (["export", "{zeros}.onnx", "-o", "x.onnx"], "is not a file"),
        (["export", "{zeros}.gguf", "-o", "x.onnx"], "is not a file"),
        (["inspect", "{zeros}.onnx"], "is not a file"),
        (["adapt", "--report", "missing/r.json"], "there is no folder missing"),
        (["corrupt", "{zeros}.png", "-o", "x", "--corruption", "fog"], "zeros.png is not a file"),
    ],
)
def test_devices_in_place_of_texts_and_models(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were read until memory was full."""
    for kind in ("csv", "toml", "onnx", "gguf", "png"):
        (tmp_path / f"zeros.{kind}").symlink_to("/dev/zero")
    assert main([each.format(zeros=tmp_path / "zeros") for each in arguments]) == 1
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """`--report /dev/null`, as root, made a file of it for all programs."""
    os.mkfifo(tmp_path / "null")
    with (
        pytest.raises(ZottaError, match="no file that could be replaced"),
        replacing(tmp_path / "null"),
    ):
        pytest.fail("nothing is to be written")
    assert (tmp_path / "null").is_fifo()


def test_labels_of_thousands_of_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    write_image(tmp_path / "photos" / "a.png")
    (tmp_path / "labels.csv").write_text(f"name,label\na.png,{'9' * 5000}\n")
    data = ["--data", str(tmp_path / "photos"), "--labels", str(tmp_path / "labels.csv")]
    assert main(["adapt", "--model", str(embedded.MODEL), "--threads", "1", *data]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("zotta-edge: error: ")
    assert len(error) < 500


def test_archives_with_other_files_than_arrays(tmp_path: Path) -> None:
    """`bytes` in place of an array ended in an AttributeError."""
    path = tmp_path / "images.npz"
    np.savez(path, digits=np.zeros((2, 8, 8), np.uint8))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "two digits")
    assert load_images(path).images.shape == (2, 8, 8)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images", "no array")
    with pytest.raises(ZottaError, match="holds nothing"):
        load_images(path)


def test_labels_that_are_no_single_array(tmp_path: Path) -> None:
    images, labels = tmp_path / "images.npy", tmp_path / "labels.npy"
    np.save(images, np.zeros((2, 8, 8), np.uint8))
    for content in ({"a": [0, 1], "b": [0, 1]}, {}):
        with labels.open("wb") as stream:
            np.savez(stream, **content)  # type: ignore[arg-type]
        with pytest.raises(ZottaError, match=r"labels\.npy does not hold one array"):
            open_images(images)
        with pytest.raises(ZottaError, match=r"labels\.npy does not hold one array"):
            read_labels(labels)
    np.save(labels, np.int64(3))
    with pytest.raises(ZottaError, match=r"labels\.npy does not hold one array"):
        open_images(images)


def test_a_list_of_many_lines_is_not_taken_apart(tmp_path: Path) -> None:
    """64 MB of short ones took 5 GB."""
    (tmp_path / "labels.csv").write_text("a,1\n" * 2_000_001)
    with pytest.raises(ZottaError, match=r"labels\.csv has 2000001 lines: at most 2000000"):
        read_labels(tmp_path / "labels.csv")


SHAPES = ["(-4, 8, 8)", "(4, -8, -8)", "(1e3,)", "(2**70, 1, 1)", "('a', 1)", "(4, 8, 8", "9" * 30]


@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_of_impossible_shapes(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path = tmp_path / "images.npy"
    path.write_bytes(b"\x93NUMPY\x01\0" + b"\x76\0" + header.encode() + bytes(256))
    with pytest.raises(ZottaError, match=r"images\.npy"):
        load_images(path)


WRITE = """
import sys, time
from zotta_edge.files import replacing
with replacing(sys.argv[1]) as temporary:
    temporary.write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


def writing(path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITE, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.skipif(sys.platform == "win32", reason="locks go with their process on Unix")
def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    """But not what another writer is still at."""
    path = tmp_path / "site.state"
    for _ in range(3):
        process = writing(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    alive = writing(path)
    try:
        left = {file.name for file in tmp_path.glob(".*.part")}
        assert len(left) == 1  # the next writer's
        other = tmp_path / ".another.state.abcdefgh.part"
        other.write_text("not ours")
        with replacing(path) as temporary:
            temporary.write_text("whole")
        assert path.read_text() == "whole"
        assert {file.name for file in tmp_path.glob(".*.part")} == left | {other.name}
    finally:
        alive.kill()
        alive.wait()


def varint(number: int, more: int = 0) -> bytes:
    """A small number, in as many bytes more than it needs."""
    if more == 0:
        return bytes([number])
    return bytes([number | 0x80]) + b"\x80" * (more - 1) + b"\0"


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("tag", [0, 1, 3])
def test_external_data_cannot_hide_behind_long_numbers(
    tmp_path: Path, length: int, tag: int
) -> None:
    """The same message with other bytes for the same lengths."""
    model = onnx.load(embedded.MODEL)
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    plain = b"\x0a\x08location"
    hidden = varint(0x0A, tag) + varint(8, length) + b"location"
    tensor.ClearField("external_data")
    entry = hidden + b"\x12\x0b/etc/passwd"
    raw = tensor.SerializeToString() + b"\x6a" + bytes([len(entry)]) + entry
    assert TensorProto.FromString(raw).external_data[0].value == "/etc/passwd"
    del model.graph.initializer[0]
    graph = model.graph.SerializeToString() + b"\x2a" + length_of(len(raw)) + raw
    model.ClearField("graph")
    content = model.SerializeToString() + b"\x3a" + length_of(len(graph)) + graph
    assert (plain in content) == (length == tag == 0)
    assert has_external_data(content)
    path = tmp_path / "hidden.onnx"
    path.write_bytes(content)
    with pytest.raises(ZottaError, match="weights in other files"):
        open_session(path)


def length_of(number: int) -> bytes:
    """A varint."""
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def test_the_word_alone_is_no_external_data(tmp_path: Path) -> None:
    model = onnx.load(embedded.MODEL)
    model.doc_string = "location"
    onnx.save(model, tmp_path / "model.onnx")
    assert not has_external_data(tmp_path / "model.onnx")
    AdaptiveModel.load(tmp_path / "model.onnx", method="none", threads=1)


@pytest.mark.parametrize("flags", [["90"], ["--generate", "90"]], ids=["images", "words"])
def test_damaged_models_end_in_one_line(tmp_path: Path, flags: list[str]) -> None:
    """The long form: python benchmarks/trust/model_files.py FOLDER 2000"""
    program = Path(model_files.__file__)
    command = [sys.executable, program, *flags[:-1], tmp_path, flags[-1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
