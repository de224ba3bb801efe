"""A real `zotta-edge serve` in a process of its own, and small clients for it."""

import http.client
import json
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.models import embedded

NAME = embedded.MODEL.stem
INFER = f"/v2/models/{NAME}/infer"
CLASSIFY = f"/v2/models/{NAME}/classify"
ADAPTATION = f"/v2/models/{NAME}/adaptation"


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int, timeout: float = 120) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> Reply:
        self._connection.request(method, path, body, dict(headers))
        response = self._connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, response.read())

    def infer(self, images: NDArray[Any], **parameters: Any) -> Reply:
        """One infer request with a binary tensor, JSON answers."""
        body, headers = infer_body(images, **parameters)
        return self.request("POST", INFER, body, headers)

    def close(self) -> None:
        self._connection.close()


def infer_body(images: NDArray[Any], **parameters: Any) -> tuple[bytes, dict[str, str]]:
    data = images.tobytes()
    entry = {
        "name": "image",
        "datatype": {"uint8": "UINT8", "float32": "FP32", "float64": "FP64"}[str(images.dtype)],
        "shape": list(images.shape),
        "parameters": {"binary_data_size": len(data)},
    }
    text = json.dumps({"inputs": [entry], "parameters": parameters}).encode()
    return text + data, {"Inference-Header-Content-Length": str(len(text))}


def logits(reply: Reply) -> NDArray[np.float64]:
    """The first output of an infer request."""
    output = reply.json["outputs"][0]
    assert output["name"] == "logits"
    return np.array(output["data"]).reshape(output["shape"])


def bytes_tensor(files: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(file)) + file for file in files)


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    port: int
    reader: threading.Thread
    lines: list[str] = field(default_factory=list)

    def get(self, path: str) -> Any:
        reply = self.request("GET", path)
        assert reply.status == 200, reply.body
        return reply.json

    def post(self, path: str, body: bytes = b"") -> Any:
        reply = self.request("POST", path, body)
        assert reply.status in (200, 201), reply.body
        return reply.json

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> Reply:
        client = Client(self.port)
        try:
            return client.request(method, path, body, headers)
        finally:
            client.close()

    def metric(self, sample: str) -> float:
        text = self.request("GET", "/metrics").body.decode()
        found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
        assert found, f"no {sample} in {text}"
        return float(found[1])

    def wait_until(self, condition: Any, seconds: float = 120) -> Any:
        """Poll the adaptation until it is as wanted."""
        return until(lambda: self.get(ADAPTATION), condition, seconds)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 50) -> int:
        """End it; afterwards `lines` has its last words, too."""
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self.reader.join(5)
        return code


def until(look: Callable[[], Any], condition: Callable[[Any], Any], seconds: float = 120) -> Any:
    """Look until it is as wanted."""
    end = time.monotonic() + seconds
    while not condition(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.02)
    return seen


@contextmanager
def serving(*flags: str | Path, folder: Path | None = None, first: str = "") -> Iterator[Server]:
    """A service of the embedded digits on a free port; ends with the block.

    `first` is code that its process runs before all else.
    """
    main = (
        f"{first}\nimport sys; from zotta_edge.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", main, "serve", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, *map(str, flags)], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines: list[str] = []
    started = threading.Event()

    def read() -> None:
        for line in process.stderr or ():
            lines.append(line)
            if "serving" in line:
                started.set()
        started.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert started.wait(300)  # a machine may be busy; one that failed has ended
        address = re.search(r"http://\S+:(\d+)", "".join(lines))
        assert address, lines
        yield Server(process, int(address[1]), reader, lines)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)


def feed(server: Server, images: NDArray[np.uint8], size: int = 16) -> None:
    """Send images in requests of `size`, one after the other."""
    client = Client(server.port)
    for at in range(0, len(images), size):
        assert client.infer(images[at : at + size]).status == 200
    client.close()


def digits(corruption: str = "fog") -> tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]:
    """The embedded corrupted stream: images [1079, 32, 32, 1] and labels."""
    source = embedded.corrupted_stream(corruption)
    labels = source.labels() or {}
    samples = list(source)
    images = np.stack([sample.image for sample in samples])
    return images, np.array([labels[sample.name] for sample in samples])
