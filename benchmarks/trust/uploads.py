"""Uploads of the largest size that never end, again and again: are the others served?

    python benchmarks/trust/uploads.py --uploads 8 --seconds 30
    python benchmarks/trust/uploads.py --uploads 24 --seconds 30

Every uploader sends all of its body but the last bytes, then nothing, or a byte twice a second, and
begins anew when it is cut off. Meanwhile one honest client sends single images, and another a
photograph of 1.9 MB, which has to find room among the uploads. A photograph that is told to come
again in a second does so. Prints how many were answered, the slowest, and the service's memory.
"""

import argparse
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import cv2
import numpy as np
from http_requests import resident
from requests_made import head
from study import Record, stream

import served  # isort: skip

SIZE = 31 * 2**20  # bytes of an upload; 32 MB are allowed
REST = 4096  # of them that are kept back
PIECE = 2**20
PATIENCE = 30.0  # seconds for one that must be answered, on a machine that is busy
MEMORY = 512.0  # MB that the service may grow by: eight uploads and what is made of them


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("uploads")
    stream()  # made once, before the threads part
    for name, pause in (("stalling", 0.0), ("trickling", 0.5)):
        with record.step(name), served.serving() as server:
            _attacked(record, name, pause, server, args)
    return record.close()


def _attacked(
    record: Record, name: str, pause: float, server: served.Server, args: argparse.Namespace
) -> None:
    done, before = threading.Event(), resident(server)
    honest = [Honest(server, send, done) for send in (_image, _photograph)]
    hostile = [
        threading.Thread(target=_upload, args=(server.port, pause, done))
        for _ in range(args.uploads)
    ]
    for thread in (*hostile, *honest):
        thread.start()
    most = 0.0
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        time.sleep(0.2)
        most = max(most, resident(server) - before)
    done.set()
    for thread in (*honest, *hostile):
        thread.join()
    for what, client in zip(("images", "photographs"), honest, strict=True):
        record.saw(f"{what} answered", client.answered)
        record.saw(f"{what} asked to come again", client.again)
        record.require(client.answered, f"{name}: no {what} were answered")
        record.require(not client.refused, f"{name}: {what} got {client.refused[:3]}")
        record.require(client.slowest < PATIENCE, f"{name}: {what} took {client.slowest:.1f} s")
        print(f"{name}: {client.answered} {what}, the slowest in {client.slowest:.2f} s")
    print(f"{name}: memory {before:.0f} MB, {most:+.0f} MB at most", flush=True)
    record.require(most < MEMORY, f"{name}: memory grew by {most:.0f} MB")
    record.require(server.stop() == 0, f"{name}: the service did not end in order")


class Honest(threading.Thread):
    """A client who asks again when it is told to."""

    def __init__(
        self,
        server: served.Server,
        send: Callable[[served.Server, int], served.Reply],
        done: threading.Event,
    ) -> None:
        super().__init__()
        self._server, self._send, self._done = server, send, done
        self.answered, self.again, self.slowest = 0, 0, 0.0
        self.refused: list[object] = []

    def run(self) -> None:
        while not self._done.is_set():
            started = time.perf_counter()
            while not self._done.is_set() and not self._once():
                time.sleep(1)
            self.slowest = max(self.slowest, time.perf_counter() - started)
            time.sleep(0.1)

    def _once(self) -> bool:
        try:
            reply = self._send(self._server, self.answered)
        except OSError as error:  # refused before all was sent: its answer may be lost
            self.refused.append(error)
            return False
        self.answered += reply.status == 200
        self.again += reply.status == 503
        if reply.status not in (200, 503):
            self.refused.append((reply.status, reply.body[:100]))
        return reply.status == 200


def _image(server: served.Server, number: int) -> served.Reply:
    body, headers = served.infer_body(stream()[number % 1000][None])
    return server.request("POST", served.INFER, body, headers)


def _photograph(server: served.Server, number: int) -> served.Reply:
    pixels = np.random.default_rng(0).integers(0, 256, (800, 800, 3), dtype=np.uint8)
    return server.request("POST", served.CLASSIFY, cv2.imencode(".bmp", pixels)[1].tobytes())


def _upload(port: int, pause: float, done: threading.Event) -> None:
    begun = head("POST", served.INFER, b"", Content_Length=str(SIZE))
    while not done.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
            slow.sendall(begun)
            for _ in range((SIZE - REST) // PIECE):
                slow.sendall(b"0" * PIECE)
            _wait(slow, pause, done)


def _wait(slow: socket.socket, pause: float, done: threading.Event) -> None:
    """Until the service has enough of it."""
    for _ in range(REST):
        slow.settimeout(pause or 1.0)
        with suppress(TimeoutError):
            slow.recv(65536)  # an answer, or the end: either way it was cut off
            return
        if done.is_set():
            return
        if pause:
            slow.sendall(b"0")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uploads", type=int, default=8, help="at the same time")
    parser.add_argument("--seconds", type=float, default=30.0, help="of stalling, and of trickling")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
