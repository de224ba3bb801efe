"""Signals and clocks: a service and a stream end in order, and time may jump.

    python benchmarks/trust/signals.py

SIGTERM, SIGINT and SIGHUP, each at a few moments, to a service under traffic and to `adapt`: exit
in order, the state saved. A service whose clock jumps back by a year, and forward again, answers,
learns, keeps its snapshots and saves.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from study import Record, stream

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded

import served  # isort: skip

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
JUMPING = """
import time
_now, _ns, _calls = time.time, time.time_ns, [0]
def _jump():
    _calls[0] += 1
    return -31536000 if _calls[0] // 5 % 2 else 0
time.time = lambda: _now() + _jump()
time.time_ns = lambda: _ns() + _jump() * 10**9
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("signals")
    stream()
    with tempfile.TemporaryDirectory() as folder:
        for index in range(args.count):
            for number in SIGNALS:
                _service(record, number, Path(folder) / f"{number.name}{index}", 0.2 * index)
                _stream(record, number, Path(folder) / f"{number.name}{index}.state", 0.3 * index)
        _clock(record, Path(folder) / "clock")
    return record.close()


def _service(record: Record, number: signal.Signals, folder: Path, seconds: float) -> None:
    with served.serving("--state", folder) as server:
        served.feed(server, stream()[:64])
        asking = threading.Thread(target=_ask, args=(server,))
        asking.start()
        time.sleep(seconds)
        code = server.stop(number)
        asking.join()
        said = "".join(server.lines)
        record.require(code == 0, f"{number.name}: the service ended with {code}")
        record.require(
            "Traceback" not in said and "stopped" in said, f"{number.name}: {said[-300:]}"
        )
    _loads(record, folder / f"{served.NAME}.state", f"{number.name}, service")
    record.saw(f"services ended by {number.name}")


def _ask(server: served.Server) -> None:
    with suppress(OSError, HTTPException):
        client = served.Client(server.port)
        for at in range(0, 960, 16):
            client.infer(stream()[at : at + 16])


def _stream(record: Record, number: signal.Signals, state: Path, seconds: float) -> None:
    """`adapt` is told to end while it is at work; a signal before that ends it at once."""
    program = [sys.executable, "-m", "zotta_edge", "adapt", "--threads", "1", "--batch-size", "1"]
    process = subprocess.Popen(
        [*program, "--state", state], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    served.until(lambda: _handles(process.pid, number) or process.poll() is not None, bool)
    time.sleep(seconds)
    process.send_signal(number)
    _, errors = process.communicate()
    record.require(process.returncode in (0, 130), f"{number.name}: {process.returncode}")
    record.require("Traceback" not in errors, f"{number.name}: {errors[-300:]}")
    _loads(record, state, f"{number.name}, adapt")
    record.saw(f"streams ended by {number.name}")


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for the signal yet."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    term = signal.SIGTERM  # Python itself handles SIGINT from the start
    return bool(caught >> (term - 1) & 1)


def _loads(record: Record, path: Path, where: str) -> None:
    with record.step(where):
        AdaptiveModel.load(embedded.MODEL, threads=1).load_state(path)


def _clock(record: Record, folder: Path) -> None:
    with served.serving("--state", folder, "--save-every", "1", first=JUMPING) as server:
        kept = []
        for at in range(0, 320, 16):
            served.feed(server, stream()[at : at + 16])
            kept.append(server.post(f"{served.ADAPTATION}/snapshots")["id"])
        listed = {one["id"] for one in server.get(f"{served.ADAPTATION}/snapshots")["snapshots"]}
        record.require(kept[-1] in listed, "the last snapshot is gone")
        server.post(f"{served.ADAPTATION}/snapshots/{kept[-1]}/restore")
        learned = server.get(served.ADAPTATION)["batches"]
        record.require(learned == 20, f"{learned} of 20 batches were learned")
        record.require(
            server.stop() == 0, "the service with the jumping clock did not end in order"
        )
        record.require("Traceback" not in "".join(server.lines), "a traceback in the log")
    record.saw("batches on a clock that jumps", learned)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=4, help="moments of each signal")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
