"""Hostile requests to a real service: no crash, no 5xx, no growth, and the others are served.

    python benchmarks/trust/http_requests.py --count 100000
    python benchmarks/trust/http_requests.py --count 10000 --generate

Four clients send bytes over sockets of their own, and eight send one of their request's bytes
every few seconds, while an honest client asks for predictions throughout. Memory is compared with
that after the first tenth of the requests. With --generate: the embedded vision-language model,
its answers in one piece and as a stream.
"""

import argparse
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import text_requests
from requests_made import Made, head, requests
from study import Record, stream

from zotta_edge.models import embedded
from zotta_edge.progress import Progress

import served  # isort: skip

CLIENTS = 4
SLOW = 8  # clients who send a byte now and then
PATIENCE = 60.0  # seconds for an answer that must come, on a machine that is busy
GROWTH = 32.0  # MB
SETTLING = 12.0  # seconds in which freed memory is given back
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record, done = Record("http"), threading.Event()
    stream()  # made once, before the threads part
    kind = TEXT if args.generate else IMAGES
    with served.serving("--model", kind.model) as server:
        honest = Honest(server, kind, done)
        slow = (server.port, kind, done)
        others = [threading.Thread(target=_slow, args=slow) for _ in range(SLOW)]
        for thread in (honest, *others):
            thread.start()
        _attack(record, server, kind, max(args.count // 10, CLIENTS), args.seed)
        time.sleep(SETTLING)
        before = resident(server)
        _attack(record, server, kind, args.count - args.count // 10, args.seed + 1)
        time.sleep(SETTLING)
        grown = resident(server) - before
        done.set()
        for thread in (honest, *others):
            thread.join()
        record.require(grown < GROWTH, f"memory grew by {grown:.1f} MB")
        record.require(not honest.refused, f"an honest client got {honest.refused[:5]}")
        code = server.stop()
        record.require(code == 0, f"the service ended with {code}")
        traces = [line for line in server.lines if "Traceback" in line or "ERROR" in line]
        record.require(not traces, f"{len(traces)} errors in the log: {traces[:3]}")
    record.saw("honest answers", honest.answered)
    print(f"memory {before:.0f} MB, {grown:+.1f} MB; slowest honest answer {honest.slowest:.2f} s")
    return record.close()


class Kind(NamedTuple):
    """What is served, the hostile requests to it, and an honest one: path, body, headers."""

    model: Path
    requests: Callable[[int, list[int]], Iterator[Made]]
    honest: Callable[[int], tuple[str, bytes, Mapping[str, str]]]


def _image(number: int) -> tuple[str, bytes, Mapping[str, str]]:
    return served.INFER, *served.infer_body(stream()[number % 1000][None])


def _question(number: int) -> tuple[str, bytes, Mapping[str, str]]:
    path = (text_requests.GENERATE, text_requests.STREAM)[number % 2]
    return path, json.dumps(text_requests.QUESTION).encode(), {}


IMAGES = Kind(embedded.MODEL, requests, _image)
TEXT = Kind(embedded.VLM, text_requests.requests, _question)


class Honest(threading.Thread):
    """A client who asks for one answer after the other."""

    def __init__(self, server: served.Server, kind: Kind, done: threading.Event) -> None:
        super().__init__()
        self._server, self._kind, self._done = server, kind, done
        self.answered, self.slowest = 0, 0.0
        self.refused: list[object] = []

    def run(self) -> None:
        client = served.Client(self._server.port)
        while not self._done.is_set():
            started = time.perf_counter()
            try:
                reply = client.request("POST", *self._kind.honest(self.answered))
            except OSError as error:
                self.refused.append(error)
                client = served.Client(self._server.port)
                continue
            self.slowest = max(self.slowest, time.perf_counter() - started)
            if reply.status == 200:
                self.answered += 1
            else:
                self.refused.append((reply.status, reply.body[:100]))
            time.sleep(0.05)


def _attack(record: Record, server: served.Server, kind: Kind, count: int, seed: int) -> None:
    lock = threading.Lock()

    def attack(client: int) -> None:
        for made in kind.requests(count // CLIENTS, [seed, client]):
            found = _sent(server.port, made)
            with lock:
                _check(record, made, found)
                progress.advance()

    with Progress("hostile requests", count) as progress:
        clients = [threading.Thread(target=attack, args=(client,)) for client in range(CLIENTS)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()


def _check(record: Record, made: Made, found: list[int] | None) -> None:
    record.saw("requests")
    if found is None:
        record.require(not made.whole, f"no answer to {made.kind}: {made.content[:200]!r}")
        return
    for status in found:
        record.saw(f"answers {status}")
        record.require(status < 500, f"{status} for {made.kind}: {made.content[:200]!r}")


def _sent(port: int, made: Made) -> list[int] | None:
    """The statuses that came back; None if nothing came."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before its end
            connection.sendall(made.content)
        connection.settimeout(PATIENCE if made.whole else 0.02)
        answer = b""
        with suppress(TimeoutError, ConnectionResetError):
            while not _STATUS.search(answer):
                if not (part := connection.recv(65536)):
                    return [] if made.whole and not answer else _statuses(answer)
                answer += part
    return _statuses(answer)


def _statuses(answer: bytes) -> list[int] | None:
    return [int(status) for status in _STATUS.findall(answer)] or None


def _slow(port: int, kind: Kind, done: threading.Event) -> None:
    """A byte of a request every second, until cut off; then again."""
    path, body, _ = kind.honest(0)
    content = head("POST", path, body) + body
    while not done.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
            for at in range(len(content)):
                slow.sendall(content[at : at + 1])
                if done.wait(1):
                    break


def resident(server: served.Server) -> float:
    """MB of the service's process."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="requests")
    parser.add_argument("--generate", action="store_true", help="of a decoder, not a classifier")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
