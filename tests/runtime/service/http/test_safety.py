"""Who may do what, and how much of it."""

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import served
from served import ADAPTATION, CLASSIFY, INFER, Client, Server

from zotta_edge.errors import ZottaError
from zotta_edge.format import Preprocessing
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http import limits
from zotta_edge.runtime.service.http.access import Access
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.limits import Arriving, Body, Intake, read_body

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served.serving("--max-body", "2", "--max-requests", "2") as server:
        yield server


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "pi.local"])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(ZottaError, match="without a token"):
        Config(host=host).read_token()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert Config(host=host).read_token() is None


def test_command_line_refuses_in_one_line() -> None:
    command = [sys.executable, "-m", "zotta_edge", "serve", "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "--token-file" in done.stderr


@pytest.mark.parametrize("content", ["", "short", "two words here", "schlüssel-schlüssel", "a\0b"])
def test_bad_tokens(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(ZottaError, match="one word of 8"):
        Config(token_file=tmp_path / "token").read_token()
    with pytest.raises(ZottaError, match="cannot read the token"):
        Config(token_file=tmp_path / "missing").read_token()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])  # the latter behind a TLS proxy
def test_token_guards_what_changes_the_model(tmp_path: Path, host: str) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with served.serving("--token-file", tmp_path / "token", "--host", host) as server:
        paths = [f"{ADAPTATION}/{name}" for name in ("reset", "pause", "resume", "snapshots")]
        for path in (*paths, f"{ADAPTATION}/snapshots/x/restore", INFER, CLASSIFY):
            for headers in (
                {},
                {"Authorization": TOKEN},
                {"Authorization": f"Basic {TOKEN}"},
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": "Bearer "},
                {"Authorization": "Bearer ü"},
            ):
                reply = server.request("POST", path, b"", headers)
                assert reply.status == 401, (path, headers)
                assert reply.headers["www-authenticate"] == "Bearer"
        assert server.get(ADAPTATION)["resets"] == 0
        allowed = {"Authorization": f"Bearer {TOKEN}", "Host": "pi.local:8080"}
        for path in paths:
            assert server.request("POST", path, b"", allowed).status in (200, 201)
        assert server.request("GET", "/metrics", headers={"Host": "pi.local"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::1"},
        {"Host": ""},
    ],
)
def test_other_web_pages_are_refused(server: Server, headers: dict[str, str]) -> None:
    before = server.get(ADAPTATION)["resets"]
    reply = server.request("POST", f"{ADAPTATION}/reset", b"", headers)
    assert reply.status == 403
    assert server.get(ADAPTATION)["resets"] == before


def test_our_own_page_is_not(server: Server) -> None:
    for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}", "[::1]:80"):
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert server.request("POST", f"{ADAPTATION}/reset", b"", headers).status == 200


def test_rebound_names_cannot_read_either() -> None:
    with pytest.raises(ServiceError, match="localhost only"):
        Access(None, only_local=True).check("GET", {"host": "evil.example"})
    Access(None, only_local=False).check("GET", {"host": "pi.local"})
    for host in ("127.0.0.2:8080", "[::1]", "LOCALHOST"):
        Access(None, only_local=True).check("GET", {"host": host})
    Access(None, only_local=True).check("GET", {})  # HTTP/1.0, as health checks still speak it


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_decompression_bombs_stop_at_the_limit(server: Server, encoding: str) -> None:
    """300 MB of spaces in 300 KB; memory must not follow."""
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    before = resident(server)
    reply = server.request("POST", INFER, pack(b" " * 300_000_000), {"Content-Encoding": encoding})
    assert reply.status == 413
    assert "larger than 2 MB" in reply.json["error"]
    assert resident(server) - before < 30


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_what_follows_a_compressed_body_is_not_kept(pack: Any) -> None:
    encoding, sent = "gzip" if pack is gzip.compress else "deflate", 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        yield pack(b"{}")
        for _ in range(9):
            sent += 1
            yield bytes(1000)

    with pytest.raises(ServiceError, match=f"not valid {encoding}"):
        asyncio.run(read_body(chunks(), None, encoding, 10**6, Body(Arriving(10**6))))
    assert sent == 1


def resident(server: Server) -> float:
    """Peak MB of the service's process."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def test_large_bodies_declared_or_not(server: Server) -> None:
    large = b" " * 3_000_000
    assert server.request("POST", INFER, large).status == 413
    client = Client(server.port)
    chunks = (large[at : at + 65536] for at in range(0, len(large), 65536))
    try:
        client._connection.request("POST", INFER, chunks, encode_chunked=True)
        assert client._connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused while it was still being sent
    assert server.get("/v2/health/ready")


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"not gzip", "gzip", 400),
        (gzip.compress(b"{}" * 1000, mtime=0)[:-10], "gzip", 400),
        (b"{}", "br", 415),
        (gzip.compress(b"no JSON", mtime=0), " GZIP", 400),
        (b"no JSON", "Identity", 400),
        (b"{}", "gzip, gzip", 415),
    ],
    ids=["not gzip", "cut off", "unknown", "capitals", "plain", "twice"],
)
def test_bad_encodings(server: Server, body: bytes, encoding: str, status: int) -> None:
    reply = server.request("POST", INFER, body, {"Content-Encoding": encoding})
    assert reply.status == status, reply.body


def test_too_many_requests_are_told_to_come_back() -> None:
    """Two clients hold both places, waiting for a batch to fill; others are told at once."""
    body, headers = served.infer_body(np.zeros((1, 32, 32, 1), np.uint8))
    with served.serving("--max-requests", "2", "--max-wait", "3") as server:
        replies: list[served.Reply] = []

        def hold() -> None:
            ask = partial(server.request, "POST", INFER, body, headers)
            replies.append(served.until(ask, lambda reply: reply.status != 503))

        holders = [threading.Thread(target=hold) for _ in range(2)]
        for holder in holders:
            holder.start()
        declined = {"adapt": False}
        body_, headers_ = served.infer_body(np.zeros((1, 32, 32, 1), np.uint8), **declined)
        ask = partial(server.request, "POST", INFER, body_, headers_)
        reply = served.until(ask, lambda reply: reply.status == 503)
        assert reply.headers["retry-after"] == "1"
        assert "try again" in reply.json["error"]
        assert server.get("/v2/health/live") == {"live": True}
        for holder in holders:
            holder.join()
        assert [reply.status for reply in replies] == [200, 200]
        assert server.request("POST", INFER, body_, headers_).status == 200


def test_bodies_that_do_not_end_hold_no_place(server: Server) -> None:
    """100 of them kept everyone else out for 30 seconds."""
    body, headers = served.infer_body(np.zeros((4, 32, 32, 1), np.uint8))
    silent = [half_sent(server.port, body, headers) for _ in range(100)]
    started = time.perf_counter()
    assert server.request("POST", INFER, body, headers).status == 200
    assert time.perf_counter() - started < 4
    silent[0].settimeout(20)
    assert silent[0].recv(100).startswith(b"HTTP/1.1 408")
    for one in silent:
        one.close()


def test_large_bodies_under_way_share_a_bounded_memory() -> None:
    """Each may hold a megabyte; beyond that, all together what eight of the largest take."""
    arriving = Arriving(4 * 2**20)
    with ExitStack() as stack:
        growing = [stack.enter_context(arriving.body()) for _ in range(20)]
        for body in growing:
            body.grow(2**20)
        for body in growing[:10]:
            body.grow(4 * 2**20)
        growing[10].grow(3 * 2**20)
        with pytest.raises(ServiceError, match="too many large requests") as refused:
            growing[11].grow(2 * 2**20)
        assert refused.value.status == 503
    with arriving.body() as body:
        body.grow(4 * 2**20)


def test_prepared_images_share_a_bounded_memory() -> None:
    """24 requests of 33 KB took 2 GB: each dot of them became a whole input."""
    intake, pixels = Intake(Config(max_body=1)), Preprocessing(32, 32, (0.5,), (0.5,))
    most = 4 * 2**20 // (4 * 32 * 32)  # in 4 MB
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(intake.room(most, pixels))
        with pytest.raises(ServiceError, match="too many images at once") as refused:
            stack.enter_context(intake.room(most, pixels))
        assert refused.value.status == 503
        for _ in range(50):  # small requests are never in the way
            stack.enter_context(intake.room(256, pixels))
        huge = Preprocessing(4000, 4000, (0.5,), (0.5,))
        stack.enter_context(intake.room(1, huge))  # a single image of whatever size, neither
    with intake.room(most, pixels):
        pass


def test_bodies_in_work_share_a_bounded_memory() -> None:
    """Whole ones that waited for their turn took 2 GB."""
    intake = Intake(Config(max_body=2))
    with ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(intake.place(bytes(2 * 2**20)))
        with pytest.raises(ServiceError, match="too many large requests at once") as refused:
            stack.enter_context(intake.place(bytes(2 * 2**20)))
        assert refused.value.status == 503
        for _ in range(64 - 16):
            stack.enter_context(intake.place(bytes(2**20)))
        with pytest.raises(ServiceError, match="too many requests at once"):
            stack.enter_context(intake.place(b""))
    with intake.place(bytes(2 * 2**20)):
        pass


def test_the_oldest_large_body_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight that never end kept every other large one out for 30 seconds."""
    monkeypatch.setattr(limits, "_YOUNG", 0.0)
    arriving, stopped = Arriving(2 * 2**20), list[int]()
    with ExitStack() as stack:
        bodies = [stack.enter_context(arriving.body()) for _ in range(20)]
        for number, body in enumerate(bodies):
            body.stop = partial(stopped.append, number)
            body.grow(2 * 2**20)
        assert stopped == [0, 1, 2, 3]
        bodies[-1].grow(2 * 2**20)
    assert len(stopped) == 4
    with arriving.body() as body:
        body.grow(2 * 2**20)


def test_a_large_body_gets_through_stalled_ones() -> None:
    """Twenty uploads of almost full size that stop at their end, and one that does not."""
    images = np.zeros((3000, 32, 32, 1), np.uint8)
    body, headers = served.infer_body(images)
    with served.serving("--max-body", "3") as server:
        stalled = [half_sent(server.port, body, headers) for _ in range(20)]
        started = time.monotonic()
        ask = partial(server.request, "POST", INFER, body, headers)
        served.until(ask, lambda reply: reply.status == 200)
        assert time.monotonic() - started < 20
        for one in stalled:
            one.close()


def test_a_body_must_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SECONDS", 0.5)
    monkeypatch.setattr(limits, "_STALL", 0.2)

    async def chunks(pause: float, count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            await asyncio.sleep(pause)
            yield b"x"

    for pause, count in ((0.4, 1), (0.05, 1000)):
        with pytest.raises(ServiceError, match="did not arrive") as refused:
            asyncio.run(read_body(chunks(pause, count), None, None, 10**6, Body(Arriving(10**6))))
        assert refused.value.status == 408
    assert asyncio.run(read_body(chunks(0, 9), None, None, 10, Body(Arriving(10**6)))) == b"x" * 9


def half_sent(port: int, body: bytes, headers: dict[str, str]) -> socket.socket:
    """A connection whose request lacks its last ten bytes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    lines = [f"POST {INFER} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body[:-10])
    return connection


def test_clients_that_leave_free_their_place(server: Server) -> None:
    body, headers = served.infer_body(np.zeros((4, 32, 32, 1), np.uint8))
    for _ in range(6):
        half_sent(server.port, body, headers).close()
    ask = partial(server.request, "POST", INFER, body, headers)
    served.until(ask, lambda reply: reply.status == 200)


def test_the_loop_is_free_while_the_model_works(server: Server) -> None:
    """Health is answered while batches run in their threads."""
    images = np.random.default_rng(0).integers(0, 256, (400, 32, 32, 1), dtype=np.uint8)
    done = threading.Event()

    def load() -> None:
        client = Client(server.port)
        for _ in range(4):
            client.infer(images)
        done.set()

    thread = threading.Thread(target=load)
    thread.start()
    client, answered = Client(server.port), 0
    while not done.is_set():
        assert client.request("GET", "/v2/health/live").status == 200
        answered += 1
    thread.join()
    assert answered > 20, "a blocked loop would answer once a request"


def test_errors_and_logs_tell_no_secrets(server: Server) -> None:
    reply = server.request("GET", "/v2/models/x%0aINFO%20forged")
    assert reply.status == 404
    assert "Traceback" not in reply.body.decode()
    log = served.until(lambda: "".join(server.lines), lambda log: "%0aINFO" in log)
    assert "\nINFO forged" not in log
    assert json.loads(reply.body)["error"].startswith("no model is called")


def test_a_long_path_does_not_fill_the_log(server: Server) -> None:
    assert server.request("GET", "/v2/models/long" + "x" * 50_000).status == 404
    served.until(lambda: "".join(server.lines), lambda log: "/v2/models/longxxx" in log)
    assert max(len(line) for line in server.lines) < 400
