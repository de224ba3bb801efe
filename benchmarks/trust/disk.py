"""A disk that fails at every step of every write: nothing half-written, the old file intact.

    python benchmarks/trust/disk.py

Each operation (a state saved, a cut kept, calibrate, prime, export, predictions written) runs in a
process of its own while one of its calls to the file system fails with ENOSPC, EIO, EACCES or
EROFS: the first, the second, and so on to the last; once, or from then on. Python tells an audit
hook of each call, which raises. Writes of native code are met by a limit on the size of files, by
disks of a few pages, by one that is read-only and by a folder of somebody else; the last three
want Linux and the right to mount in a namespace of one's own, and are left out without. A service
whose state has no room must go on answering.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faults
import numpy as np
from faults import Fault
from study import Record, stream

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.__main__ import main as zotta_edge
from zotta_edge.files import sha256
from zotta_edge.models import embedded
from zotta_edge.progress import Progress
from zotta_edge.runtime.engine.model_info import read_info

import served  # isort: skip
import toy  # isort: skip

FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))"


@dataclass(frozen=True)
class Operation:
    """Something that replaces one file of a folder."""

    output: str
    prepare: Callable[[Path], object]  # fills the folder, with the old file too
    run: Callable[[Path], int]  # -> exit code
    works: Callable[[Path], object]  # reads what was written; raises if it is not whole
    must: bool = False  # go on whatever the disk does


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("disk")
    stream()
    with tempfile.TemporaryDirectory() as where:
        os.chmod(where, 0o755)
        for name in args.only.split(","):
            _every_fault(record, name, OPERATIONS[name], Path(where), args.step)
        _full_service(record, Path(where))
    return record.close()


def _every_fault(record: Record, name: str, operation: Operation, where: Path, step: int) -> None:
    _warm(operation, where)
    clean = _in_child(operation, where, faults.counting())
    record.require(clean["code"] == 0, f"{name} without a fault: {clean}")
    wanted = list(faults.every(clean["calls"], step))
    with Progress(f"faults of {name}", len(wanted)) as progress:
        for fault in wanted:
            _check(record, name, operation, fault, _in_child(operation, where, fault))
            progress.advance()


def _warm(operation: Operation, where: Path) -> None:
    """Once in this process: its children find all modules loaded."""
    with tempfile.TemporaryDirectory(dir=where) as folder, _quiet(io.StringIO()):
        operation.prepare(Path(folder))
        operation.run(Path(folder))
        operation.works(Path(folder))


@contextlib.contextmanager
def _quiet(errors: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        yield


def _check(
    record: Record, name: str, operation: Operation, fault: Fault, found: dict[str, Any]
) -> None:
    """Done, or refused in one line with everything as it was."""
    code, errors = found["code"], found["errors"]
    where = f"{name}, {fault.name}: exit {code}, {errors[-300:]!r}"
    lines = [line for line in errors.splitlines() if line.startswith("zotta-edge: error: ")]
    record.require("Traceback" not in errors and code in (0, 1), where)
    record.require(found["whole"], f"{where}: a file that does not work: {found['why']}")
    if code:
        record.require(not operation.must, f"{where}: stopped for the disk")
        record.require(len(lines) == 1, f"{where}: {len(lines)} lines")
        record.require(found["same"], f"{where}: the old file was changed")
    if not fault.lasting:
        record.require(not found["left"], f"{where}: left {found['left']}")
    record.saw(f"{name} {'refused' if code else 'done all the same'}")


def _in_child(operation: Operation, where: Path, fault: Fault) -> dict[str, Any]:
    """What came of an operation in a process that has the fault."""
    folder = Path(tempfile.mkdtemp(dir=where))
    read, write = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.write(write, json.dumps(_outcome(operation, folder, fault)).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return dict(json.loads(text or "{}")) or {
        **{"code": -1, "errors": f"the process ended with {status}", "whole": False},
        **{"why": "", "same": False, "left": [], "calls": 0},
    }


def _outcome(operation: Operation, folder: Path, fault: Fault) -> dict[str, Any]:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    fault.mount(folder)
    operation.prepare(folder)
    output, before = folder / operation.output, _files(folder)
    old, errors, code = sha256(output), io.StringIO(), 70
    failing = fault.begin(folder)
    with _quiet(errors):
        try:
            code = operation.run(folder)
        except Exception as error:
            errors.write(f"Traceback: {type(error).__name__}: {error}")
    calls = getattr(failing, "count", 0)
    if failing is not None:
        failing.off = True
    faults.lift()
    why = _flaw(operation, folder)
    left = sorted(_files(folder) - before - {operation.output, "filler"})
    return {
        "code": code,
        "errors": errors.getvalue(),
        "calls": calls,
        "same": sha256(output) == old,
        "whole": not why,
        "why": why,
        "left": [name for name in left if not name.startswith(("cache", ".zotta-cache"))]
        + [name for name in left if name.endswith(".part")],
    }


def _flaw(operation: Operation, folder: Path) -> str:
    try:
        operation.works(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _full_service(record: Record, where: Path) -> None:
    """No state can be written: every request is answered, and the log says why in a line each."""
    flags = ("--state", where / "states", "--save-every", "1")
    with served.serving(*flags, first=FULL) as server:
        for learned, batch in enumerate(np.split(stream()[:160], 10), 1):
            served.feed(server, batch)  # one by one: a busy machine learns later than it answers
            server.wait_until(lambda now, learned=learned: now["batches"] == learned)
        snapshot = server.request("POST", f"{served.ADAPTATION}/snapshots", b"")
        record.require(snapshot.status == 507, f"a snapshot without room: {snapshot.status}")
        code = server.stop()
        told = [line for line in server.lines if "cannot write" in line]
        record.require(code == 0 and told, f"the service ended with {code}: {server.lines[-3:]}")
        record.require("Traceback" not in "".join(server.lines), "a traceback in the log")
    record.saw("batches served without room for a state", learned)


def _model(folder: Path) -> Path:
    return Path(shutil.copyfile(embedded.MODEL, folder / "digits.onnx"))


def _images(folder: Path) -> None:
    _model(folder)
    np.save(folder / "images.npy", embedded.digits(16).repeat(4, 1).repeat(4, 2))


def _load(folder: Path) -> AdaptiveModel:
    return AdaptiveModel.load(folder / "digits.onnx", threads=1)


def _answers(folder: Path) -> int:
    result = _load(folder).predict(stream()[:16])
    assert np.isfinite(result.logits).all()
    return 0


def _with_state(folder: Path) -> None:
    _model(folder)
    model = _load(folder)
    model.predict(stream()[:16])
    model.save_state(folder / "site.state")


def _save(folder: Path) -> int:
    """As a service does: a state that cannot be saved is told, and the model goes on."""
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    model.predict(stream()[16:32])
    try:
        model.save_state(folder / "site.state")
    except ZottaError as error:
        print(error, file=sys.stderr)
    return int(not np.isfinite(model.predict(stream()[32:48]).logits).all())


def _resumes(folder: Path) -> None:
    AdaptiveModel.load(embedded.MODEL, threads=1).load_state(folder / "site.state")


def _calibrate(folder: Path, *more: str) -> int:
    flags = ["--source", str(folder / "images.npy"), "--layers", "1", "--threads", "1"]
    return zotta_edge(["calibrate", str(folder / "digits.onnx"), *flags, *more])


def _source(folder: Path) -> None:
    (folder / "net.onnx").write_bytes(toy.residual_net().SerializeToString())
    shutil.copyfile(embedded.MODEL, folder / "out.onnx")


def _export(folder: Path) -> int:
    flags = ["--mean", "0.5", "--std", "0.5", "-o", str(folder / "out.onnx")]
    return zotta_edge(["export", str(folder / "net.onnx"), *flags])


def _with_output(folder: Path) -> None:
    _images(folder)
    (folder / "out.csv").write_text("image,label\n")


def _adapt(folder: Path) -> int:
    data = ["--data", str(folder / "images.npy"), "--output", str(folder / "out.csv")]
    return zotta_edge(["adapt", "--model", str(folder / "digits.onnx"), "--threads", "1", *data])


def _lines(folder: Path) -> None:
    lines = (folder / "out.csv").read_text().splitlines()
    assert len(lines) in (1, 17), lines


OPERATIONS = {
    "state": Operation("site.state", _with_state, _save, _resumes, must=True),
    "cut": Operation("digits.onnx", _model, _answers, _answers, must=True),
    "calibrate": Operation("digits.onnx", _images, _calibrate, _answers),
    "prime": Operation(
        "digits.onnx", _images, lambda folder: _calibrate(folder, "--prime"), _answers
    ),
    "export": Operation(
        "out.onnx",
        _source,
        _export,
        lambda folder: read_info(folder / "out.onnx"),
    ),
    "predictions": Operation("out.csv", _with_output, _adapt, _lines),
}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(OPERATIONS), help="default: %(default)s")
    parser.add_argument("--step", type=int, default=1, help="try every so-manieth fault")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
