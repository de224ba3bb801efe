"""One caller who means harm, and what the others notice of it."""

import asyncio
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import served
from image_files import chunk
from numpy.typing import NDArray
from onnx import numpy_helper
from served import ADAPTATION, CLASSIFY, INFER, Client, Server

from zotta_edge import AdaptiveModel
from zotta_edge.errors import NotFiniteError
from zotta_edge.models import embedded
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.http import protocol
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.limits import check_answer
from zotta_edge.runtime.service.learning.batching import Batcher
from zotta_edge.runtime.service.learning.worker import Writer
from zotta_edge.runtime.state.file import save

READY = "/v2/health/ready"
FEW = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served.serving() as server:
        yield server


def resident(server: Server) -> float:
    """Peak MB of the service's process."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def infer(server: Server, entry: dict[str, Any], data: bytes, **more: Any) -> served.Reply:
    entry = {"name": "image", "parameters": {"binary_data_size": len(data)}} | entry
    text = json.dumps({"inputs": [entry]} | more).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return Client(server.port, timeout=120).request("POST", INFER, text + data, headers)


class Others:
    """A client who asks for one image after the other, and how long it waits at most."""

    def __init__(self, server: Server) -> None:
        self._server, self._done = server, threading.Event()
        self.slowest, self.answered = 0.0, 0
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        client = Client(self._server.port, timeout=120)
        while not self._done.is_set():
            started = time.perf_counter()
            reply = client.infer(np.zeros((1, 32, 32, 1), np.uint8), adapt=False)
            assert reply.status == 200
            self.slowest = max(self.slowest, time.perf_counter() - started)
            self.answered += 1

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def dot() -> bytes:
    """A PNG of one pixel."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    pixel = chunk(b"IDAT", zlib.compress(b"\0\x80"))
    return b"\x89PNG\r\n\x1a\n" + header + pixel + chunk(b"IEND", b"")


def test_extreme_numbers_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """Sixteen finite images, and every later request was a 500, also after a restart."""
    images = np.full((16, 1, 32, 32), 3e38, np.float32)
    images[:, :, ::2] *= -1
    honest = np.zeros((16, 32, 32, 1), np.uint8)
    with served.serving("--state", tmp_path) as server:
        client = Client(server.port)
        for poison in (images, np.concatenate([images[:1], np.zeros_like(images[1:])])):
            reply = client.infer(poison)
            assert reply.status == 400
            assert "this model's images lie between" in reply.json["error"]
        assert client.infer(honest).status == 200
        assert server.get(ADAPTATION)["drift"] is not None
        assert server.get(READY) == {"ready": True}
        server.stop()
    with served.serving("--state", tmp_path) as server:
        assert Client(server.port).infer(honest).status == 200


def test_a_state_that_is_not_finite_is_put_aside(tmp_path: Path) -> None:
    """One with a checksum that fits ended the start in a traceback."""
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    arrays = {name: array.copy() for name, array in model.arrays().items()}
    for array in arrays.values():
        if array.dtype.kind == "f":
            array[...] = np.nan
    save(tmp_path / f"{served.NAME}.state", arrays, model.fingerprint, model.method)
    with served.serving("--state", tmp_path) as server:
        assert server.get(READY) == {"ready": True}
        assert Client(server.port).infer(np.zeros((16, 32, 32, 1), np.uint8)).status == 200
        assert server.get(ADAPTATION)["events"][0]["kind"] == "source"
        server.stop()
        assert "starting from the source" in "".join(server.lines)
        assert "Traceback" not in "".join(server.lines)


def test_a_model_that_cannot_answer_is_not_ready(tmp_path: Path) -> None:
    """A damaged weight, and nothing but NaN comes out: readiness is to say so."""
    model = onnx.load(embedded.MODEL)
    head = next(node for node in reversed(model.graph.node) if node.op_type == "Add")
    bias = next(one for one in model.graph.initializer if one.name in head.input)
    broken = np.full_like(numpy_helper.to_array(bias), np.nan)
    bias.CopyFrom(numpy_helper.from_array(broken, bias.name))
    onnx.save(model, tmp_path / f"{served.NAME}.onnx")
    flags = ("--model", tmp_path / f"{served.NAME}.onnx", "--method", "none")
    with served.serving(*flags) as server:
        assert server.request("GET", READY).status == 503
        reply = Client(server.port).infer(np.zeros((1, 32, 32, 1), np.uint8))
        assert (reply.status, "not finite" in reply.json["error"]) == (422, True)
        assert server.request("GET", READY).status == 503
        assert server.get("/v2/health/live") == {"live": True}


@pytest.mark.parametrize("count", [2, 2000])
def test_outputs_are_named_once(server: Server, count: int) -> None:
    """2,000 times: 517 bytes in, 398 MB out."""
    entry = {"datatype": "UINT8", "shape": [1, 32, 32, 1]}
    reply = infer(server, entry, bytes(1024), outputs=[{"name": "logits"}] * count)
    assert reply.status == 400
    assert "outputs" in reply.json["error"]


def test_an_answer_is_bounded_before_it_is_made() -> None:
    """By an estimate that no answer exceeds, and none falls far short of."""
    values = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32) / 1e3
    result = Result(values.argmax(axis=1), values, values, False, None)
    for binary in (False, True):
        outputs = tuple((name, binary) for name in protocol.OUTPUTS)
        asked = protocol.InferRequest([b""] * 50, None, True, outputs)
        content, _ = protocol.respond("m", asked, result, ["name"] * 50, {})
        info = replace(AdaptiveModel.load(embedded.MODEL).info, classes=40, labels=("name",) * 40)
        estimate = protocol.answer_size(asked, info)
        assert 0.9 * len(content) < estimate + 300 < 1.5 * len(content)
    check_answer(estimate, estimate)
    with pytest.raises(ServiceError, match="the answer would take"):
        check_answer(estimate, estimate - 1)


class Touchy:
    """A model that some images overflow."""

    def predict_prepared(self, images: NDArray[np.float32], adapt: bool) -> Result:
        if images.max() > 1:
            raise NotFiniteError("not finite")
        logits = np.zeros((len(images), 2), np.float32)
        return Result(logits.argmax(axis=1), logits, logits, False, None)


def test_only_the_images_at_fault_are_not_answered() -> None:
    """Others that came at the same time were answered in one batch with them."""

    async def ask() -> list[Any]:
        model: Any = Touchy()
        observer: Any = SimpleNamespace(answered=lambda result, seconds: None)
        batcher = Batcher(model, Writer(), Config(adapt="off"), observer)
        images = [np.full((1, 1, 2, 2), value, np.float32) for value in (0, 9, 1)]
        found = await asyncio.gather(*map(batcher.answer, images), return_exceptions=True)
        batcher.close()
        return found

    first, bad, last = asyncio.run(ask())
    assert (len(first.labels), len(last.labels)) == (1, 1)
    assert isinstance(bad, NotFiniteError)


def test_a_request_of_many_dots_lets_others_through(server: Server) -> None:
    """30,000 images of 1 x 1 pixels kept the others waiting for 14 seconds."""
    files = served.bytes_tensor([dot()] * 3000)
    with Others(server) as others:
        reply = infer(server, {"datatype": "BYTES", "shape": [3000]}, files)
    assert reply.status == 200
    assert reply.json["outputs"][2]["shape"] == [3000]
    assert others.answered > 20
    assert others.slowest < 2


def test_more_files_than_allowed_are_refused_unread(server: Server) -> None:
    """Seven million empty ones took 20 seconds to count."""
    started = time.perf_counter()
    count = 7_000_000
    reply = infer(server, {"datatype": "BYTES", "shape": [count]}, bytes(4 * count))
    assert reply.status == 413
    reply = infer(server, {"datatype": "BYTES", "shape": [2]}, bytes(4 * count))
    assert (reply.status, "goes on after" in reply.json["error"]) == (400, True)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "text",
    [
        *(b"[" + b"[]," * 10_000_000 + b"[]]", b"[" + b"1," * 15_000_000 + b"1]"),
        *(b"[" * 30_000_000, b"[" + b'"", ' * 3_900_000 + b"1]"),
        b"{" + b",".join(b'"%d":1' % at for at in range(1_900_000)) + b"}",
    ],
    ids=["lists", "numbers", "depth", "texts", "names"],
)
def test_json_that_takes_long_is_refused_unread(server: Server, text: bytes) -> None:
    body = (
        b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1], "data": ' + text + b"}]}"
    )
    before = resident(server)
    with Others(server) as others:
        reply = Client(server.port, timeout=120).request("POST", INFER, body)
    assert (reply.status, "send binary data" in reply.json["error"]) == (413, True)
    assert others.slowest < 2
    assert resident(server) - before < 150  # the body itself, and its growth


def test_what_a_request_calls_itself_is_short(server: Server) -> None:
    """31 MB came back as 186 MB, which a client might not even read."""
    one, black = {"datatype": "UINT8", "shape": [1, 1, 1, 1]}, bytes(1)
    assert infer(server, one, black, id="\x7f" * 1001).status == 400
    assert infer(server, one, black, id="\x7f" * 1000).json["id"] == "\x7f" * 1000


def test_a_file_of_one_byte_repeated_lets_others_through(server: Server) -> None:
    with Others(server) as others:
        reply = server.request("POST", CLASSIFY, b"\xff\xd8" + b"\xff" * 31_000_000)
    assert reply.status == 400
    assert others.slowest < 2


def connected(port: int, said: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(said)
    return connection


def test_silent_connections_make_room() -> None:
    """300 of them with 256 descriptors: nobody was served, and 94,000 tracebacks were logged."""
    with served.serving(first=FEW) as server, ExitStack() as stack:
        for index in range(300):
            said = b"POST /v2 HTTP/1.1\r\nHost: localhost\r\n" if index % 2 else b""
            stack.enter_context(connected(server.port, said))
        started = time.perf_counter()
        for _ in range(5):
            assert server.get(READY) == {"ready": True}
        assert time.perf_counter() - started < 5
        images = np.zeros((16, 32, 32, 1), np.uint8)
        assert Client(server.port).infer(images).status == 200
        server.stop()
        assert len(server.lines) < 30
        assert "Traceback" not in "".join(server.lines)


def test_requests_under_way_are_not_cut_for_new_connections() -> None:
    """Only those who wait for nothing make room."""
    body, headers = served.infer_body(np.zeros((1, 32, 32, 1), np.uint8))
    few = FEW.replace("256", "128")  # 64 connections
    with served.serving("--max-wait", "2", first=few) as server, ExitStack() as stack:
        client = Client(server.port)
        client._connection.request("POST", INFER, body, headers)
        for _ in range(150):
            stack.enter_context(connected(server.port))
        assert client._connection.getresponse().status == 200


def test_headers_must_arrive(server: Server) -> None:
    """In ten seconds, also when they come a byte at a time."""
    with connected(server.port, b"GET /v2 HT") as connection:
        connection.settimeout(0.5)
        started = time.perf_counter()
        closed = False
        while not closed and time.perf_counter() - started < 30:
            try:
                connection.sendall(b"x")
                closed = connection.recv(10) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed
        assert time.perf_counter() - started > 5
