"""kill -9 at random moments while a state is saved: the old one or the new one, bit for bit.

    python benchmarks/trust/kills.py --count 1000 --services 30

Each writer is a process that continues from the file it finds, as after a restart, learns from an
image, and saves again and again; it says the hash of what it is about to save, and of what it has
saved. It is killed at a moment drawn from the length of a few saves. Then the file must hold one of
the two, and load. Services are killed under traffic as well, with a save after every step.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import numpy as np
from study import Record, state_of, stream

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded
from zotta_edge.progress import Progress

import served  # isort: skip

SAVES = 6  # a writer is killed within about this many


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record, rng = Record("kills"), random.Random(args.seed)
    model = AdaptiveModel.load(args.model, method=args.method, threads=1)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "site.state"
        kill_writers(record, model, path, args.count, rng)
        kill_services(record, Path(folder) / "service", args.services, rng)
    return record.close()


def kill_writers(
    record: Record, model: AdaptiveModel, path: Path, count: int, rng: random.Random
) -> None:
    stream()  # made once, before the processes part
    model.save_state(path)
    seconds = _seconds_of_a_save(model, path)
    last = state_of(model)
    with Progress("killing writers", count) as progress:
        for index in range(count):
            process, pipe = _writer(model, path, index)
            os.read(pipe, 1)  # it has loaded what there was
            time.sleep(rng.uniform(0, SAVES * seconds))
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            last = _check(record, model, path, [last, *_said(pipe)], index)
            progress.advance()
    model.save_state(path)
    left = [file.name for file in path.parent.iterdir() if file != path]
    record.require(not left, f"left behind: {left}")


def _writer(model: AdaptiveModel, path: Path, index: int) -> tuple[int, int]:
    """A process that saves until it is killed, and a pipe with what it says."""
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return process, read
    try:
        model.load_state(path)
        os.write(write, b".")
        for at in range(10**6):
            model.predict(stream()[(7 * index + at) % 1000][None])
            os.write(write, f"about {state_of(model)}\n".encode())
            model.save_state(path)
            os.write(write, f"saved {state_of(model)}\n".encode())
    finally:
        os._exit(1)


def _said(pipe: int) -> list[str]:
    """The hashes of the last saved state and of the one under way, as far as there were any."""
    with os.fdopen(pipe) as lines:
        words = [line.split() for line in lines.read().splitlines()]
    saved = [word[1] for word in words if len(word) == 2 and word[0] == "saved"]
    if words and words[-1][0] == "about":
        return [*saved[-1:], words[-1][1]]
    return saved[-1:]


def _check(record: Record, model: AdaptiveModel, path: Path, known: list[str], index: int) -> str:
    """The state that is there; `known` ends with the last saved one, or with one under way."""
    with record.step(f"kill {index}"):
        model.load_state(path)
    found = state_of(model)
    old, new = known[-2:] if len(known) > 1 else (known[0], known[0])
    record.require(found in (old, new), f"kill {index}: a state that nobody saved last")
    record.saw("new state" if found == new else "old state")
    parts = len(list(path.parent.glob(".*.part")))
    record.require(parts <= 1, f"kill {index}: {parts} temporary files")
    record.saw("kills in the middle of a save", parts)
    return found


def _seconds_of_a_save(model: AdaptiveModel, path: Path) -> float:
    started = time.perf_counter()
    for _ in range(5):
        model.predict(np.zeros((1, 32, 32, 1), np.uint8), adapt=False)
        model.save_state(path)
    return (time.perf_counter() - started) / 5


def kill_services(record: Record, folder: Path, count: int, rng: random.Random) -> None:
    """A service that is killed while it learns and saves starts again with what it had learned."""
    flags = ("--state", folder, "--save-every", "1", "--batch-size", "4")
    steps = 0
    for index in range(count):
        with served.serving(*flags) as server:
            now = server.get(served.ADAPTATION)
            record.require(now["batches"] >= steps, f"service {index}: {now['batches']} < {steps}")
            wrong = [line for line in server.lines if "from the source" in line]
            record.require(not wrong, f"service {index}: {wrong}")
            asking = threading.Thread(target=_ask, args=(server,))
            asking.start()
            time.sleep(rng.uniform(0.05, 0.6))
            with suppress(OSError, HTTPException):
                steps = _saved(server, steps)
            server.process.kill()
            asking.join()
        record.saw("services killed")


def _saved(server: served.Server, steps: int) -> int:
    """Batches that were learned before this moment, less those whose save may be under way."""
    return max(steps, int(server.get(served.ADAPTATION)["batches"]) - 2)


def _ask(server: served.Server) -> None:
    with suppress(OSError, HTTPException):
        client = served.Client(server.port, timeout=10)
        for start in range(0, 1000, 4):
            client.infer(stream()[start : start + 4])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="writers to kill")
    parser.add_argument("--services", type=int, default=30, help="services to kill")
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--method")
    parser.add_argument("--folder", type=Path, help="on the disk to try; default: temporary")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
