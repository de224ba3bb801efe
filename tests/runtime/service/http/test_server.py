"""Start, stop, crash and go on."""

import http.client
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import served
from served import INFER, NAME, Client

from zotta_edge.models import embedded

STUCK = """
import time
from zotta_edge.runtime.methods.none import NoAdaptation
NoAdaptation.read = lambda self, images: time.sleep(60)
"""
SLOW = ("--method", "zotta", "--set", "always=true", "--set", "pairs=20000")  # outlasts a shutdown
BARE = """
import sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"image": np.zeros((1, 1, 32, 32), np.float32)})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_sigterm_under_load_answers_every_accepted_request(images: Any, tmp_path: Path) -> None:
    """Clients reconnect like real ones; once connected and sent, a request is answered."""
    with served.serving("--state", tmp_path) as server:
        answered, unanswered, refused = [0], list[Any](), threading.Event()

        def ask(seed: int) -> None:
            rng = np.random.default_rng(seed)
            client = Client(server.port)
            while not refused.is_set():
                index = int(rng.integers(len(images)))
                try:
                    client._connection.connect() if client._connection.sock is None else None
                except ConnectionRefusedError:
                    refused.set()
                    return
                try:
                    reply = client.infer(images[index : index + 1])
                except (OSError, http.client.HTTPException) as error:
                    unanswered.append(error)
                    return
                if reply.status != 200:
                    unanswered.append(reply)
                    return
                answered[0] += 1

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        so_far = answered[0]
        assert server.stop() == 0
        for thread in threads:
            thread.join(50)
        assert not unanswered
        assert answered[0] > so_far, "answers went on after SIGTERM"
        assert (tmp_path / f"{NAME}.state").exists()


def test_not_ready_while_it_stops() -> None:
    with served.serving() as server:
        client = Client(server.port)
        assert client.request("GET", "/v2/health/ready").status == 200
        server.process.send_signal(signal.SIGTERM)
        ask = partial(client.request, "GET", "/v2/health/ready")
        served.until(ask, lambda reply: reply.status == 503)
        assert server.process.wait(50) == 0


@pytest.mark.slow
def test_hanging_clients_do_not_hold_it(tmp_path: Path) -> None:
    with served.serving("--state", tmp_path) as server:
        hanging = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        hanging[0].sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode())
        hanging[1].sendall(
            f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode()
        )
        time.sleep(0.2)
        assert server.stop() == 0
        assert (tmp_path / f"{NAME}.state").exists()


@pytest.mark.slow
def test_an_update_that_outlasts_the_shutdown_is_left_out(images: Any, tmp_path: Path) -> None:
    """The requests of its batch are answered all the same."""
    with served.serving("--state", tmp_path, *SLOW, "--deadline", "600") as server:
        replies = []
        asking = threading.Thread(
            target=lambda: replies.append(Client(server.port).infer(images[:16]))
        )
        asking.start()
        time.sleep(1)
        assert server.stop() == 0
        asking.join(5)
        assert replies[0].status == 200
        assert not replies[0].json["parameters"]["adapted"]
        assert any("still under way" in line for line in server.lines)


@pytest.mark.slow
def test_an_answer_that_outlasts_the_shutdown_is_left_out(
    images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with served.serving("--adapt", "off", first=STUCK) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as asking:
            body, headers = served.infer_body(images[:1])
            lines = [f"POST {INFER} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            asking.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            time.sleep(1)
            assert list(tmp_path.glob("zotta-*"))
            assert server.stop() == 0
        assert not list(tmp_path.glob("zotta-*"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux's prlimit")
def test_without_free_file_descriptors_it_stops_all_the_same() -> None:
    with served.serving() as server:
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used, used))
        waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        assert server.stop() == 0
        for connection in waiting:
            connection.close()


def test_ctrl_c_is_a_clean_end() -> None:
    with served.serving() as server:
        assert server.stop(signal.SIGINT) == 0
        assert not any("Traceback" in line for line in server.lines)


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "zotta_edge", "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"zotta-edge: error: cannot listen on 127.0.0.1:{port}")
    assert done.stderr.count("\n") == 1


def resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_idle_it_takes_little_more_than_onnxruntime(tmp_path: Path) -> None:
    """Within 60 MB of a bare process with the same model, on the first start (which cuts the
    graph) and on those after it."""
    model = tmp_path / "digits.onnx"
    shutil.copy(embedded.MODEL, model)
    command = [sys.executable, "-c", BARE, str(model)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as bare:
        assert bare.stdout is not None
        assert bare.stdout.readline() == "ready\n"
        alone = resident(bare.pid)
        bare.kill()
    for _ in range(2):
        with served.serving("--model", model) as server:
            assert server.get("/v2")["models"] == ["digits"]
            assert resident(server.process.pid) - alone < 60


def test_without_the_extra_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.modules['starlette.applications'] = None\n"
        "from zotta_edge.__main__ import main; sys.exit(main(['serve']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'zotta-edge[serve]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_needs_no_web_server() -> None:
    code = (
        "import sys; from zotta_edge.__main__ import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'starlette', 'uvicorn', 'onnxruntime'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--max-wait" in done.stdout
