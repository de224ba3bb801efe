"""Start, stop, crash and go on."""

import http.client
import json
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
from served import ADAPTATION, INFER, NAME, Client, Server

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded
from zotta_edge.runtime.service.learning.snapshots import KEPT, Store

STUCK = """
import time
from zotta_edge.runtime.methods.none import NoAdaptation
NoAdaptation.read = lambda self, images: time.sleep(60)
"""
SLOW = ("--method", "zotta", "--set", "always=true", "--set", "pairs=1500")  # outlasts a shutdown
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


@pytest.fixture(scope="module")
def images() -> Any:
    return served.digits()[0]


def feed(server: Server, images: Any, start: int, end: int) -> None:
    client = Client(server.port)
    for at in range(start, end, 16):
        assert client.infer(images[at : at + 16]).status == 200


def test_killed_and_restarted_it_goes_on_from_the_last_save(images: Any, tmp_path: Path) -> None:
    flags = ("--state", tmp_path, "--save-every", "2", "--deadline", "60")
    with served.serving(*flags) as server:
        feed(server, images, 0, 128)
        before = server.get(ADAPTATION)
        server.stop(signal.SIGKILL)
    with served.serving(*flags) as server:
        after = server.get(ADAPTATION)
        assert before["steps"] - 2 <= after["steps"] <= before["steps"]
        assert after["steps"] > 0
        assert after["distance"] > 0
        assert after["phase"] == "adapting"
        feed(server, images, 128, 160)
        assert server.get(ADAPTATION)["steps"] == after["steps"] + 2


def test_stopped_and_restarted_it_goes_on_exactly_where_it_was(images: Any, tmp_path: Path) -> None:
    with served.serving("--state", tmp_path / "new" / "folder", "--deadline", "60") as server:
        feed(server, images, 0, 96)
        before = server.get(ADAPTATION)
        taken = server.post(f"{ADAPTATION}/snapshots")
        assert server.stop() == 0
    with served.serving("--state", tmp_path / "new" / "folder") as server:
        after = server.get(ADAPTATION)
        for key in ("steps", "images", "distance", "drift", "phase", "guard", "layers"):
            assert after[key] == before[key]
        assert server.get(f"{ADAPTATION}/snapshots")["snapshots"] == [taken]
        server.post(f"{ADAPTATION}/reset")
        server.stop(signal.SIGKILL)
    with served.serving("--state", tmp_path / "new" / "folder") as server:
        assert server.get(ADAPTATION)["steps"] == 0, "a reset outlives a crash"


@pytest.fixture(scope="module")
def state(images: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A good one."""
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    for at in range(0, 64, 16):
        model.predict(images[at : at + 16])
    path = tmp_path_factory.mktemp("state") / "good"
    model.save_state(path)
    return path.read_bytes()


def test_a_state_of_the_library_is_taken_up(state: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.state").write_bytes(state)
    with served.serving("--state", tmp_path) as server:
        assert server.get(ADAPTATION)["steps"] > 0


@pytest.mark.parametrize("damage", ["truncated", "noise", "empty", "flipped"])
def test_a_damaged_state_is_put_aside(
    images: Any, state: bytes, tmp_path: Path, damage: str
) -> None:
    flipped = state[:-1] + bytes([state[-1] ^ 1])
    harm = {"truncated": state[:999], "noise": b"x" * 999, "empty": b"", "flipped": flipped}
    (tmp_path / f"{NAME}.state").write_bytes(harm[damage])
    with served.serving("--state", tmp_path) as server:
        assert server.get(ADAPTATION)["steps"] == 0
        assert any("starting from the source" in line for line in server.lines)
        (aside,) = tmp_path.glob("*.unusable-*")
        assert aside.read_bytes() == harm[damage]
        feed(server, images, 0, 32)


def test_off_leaves_the_state_alone(images: Any, state: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.state").write_bytes(state)
    with served.serving("--state", tmp_path, "--adapt", "off") as server:
        feed(server, images, 0, 16)
        server.post(f"{ADAPTATION}/snapshots")
        server.post(f"{ADAPTATION}/reset")
        assert server.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.state"]
    assert (tmp_path / f"{NAME}.state").read_bytes() == state


def test_a_snapshot_outlives_a_clock_that_went_back(tmp_path: Path) -> None:
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    store = Store(tmp_path, "digits", 1)
    for day in range(1, KEPT + 1):
        (tmp_path / "digits.snapshots" / f"209901{day:02}T000000000Z-1.state").touch()
    (tmp_path / "digits.snapshots" / "20990199T000000000Z-1.state").touch()  # no such day
    taken = store.take(model)
    kept = [one.id for one in store.snapshots()]
    assert (len(kept), kept[-1]) == (KEPT, taken.id)
    store.restore(model, taken.id)
    store.close()


def test_one_process_a_state(tmp_path: Path) -> None:
    with served.serving("--state", tmp_path):
        command = [sys.executable, "-m", "zotta_edge", "serve", "--port", "0", "--state", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "in use by another process" in done.stderr
        assert "Traceback" not in done.stderr


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
        started, so_far = time.monotonic(), answered[0]
        assert server.stop() == 0
        assert time.monotonic() - started < 10
        for thread in threads:
            thread.join(10)
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
        assert server.process.wait(10) == 0


def test_hanging_clients_do_not_hold_it(tmp_path: Path) -> None:
    with served.serving("--state", tmp_path) as server:
        hanging = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        hanging[0].sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode())
        hanging[1].sendall(
            f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode()
        )
        time.sleep(0.2)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 10
        assert (tmp_path / f"{NAME}.state").exists()


def test_an_update_that_outlasts_the_shutdown_is_left_out(images: Any, tmp_path: Path) -> None:
    """The requests of its batch are answered all the same."""
    with served.serving("--state", tmp_path, *SLOW, "--deadline", "600") as server:
        replies = []
        asking = threading.Thread(
            target=lambda: replies.append(Client(server.port).infer(images[:16]))
        )
        asking.start()
        time.sleep(1)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 10
        asking.join(5)
        assert replies[0].status == 200
        assert not replies[0].json["parameters"]["adapted"]
        assert any("still under way" in line for line in server.lines)


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
            assert server.stop(seconds=10) == 0
        assert not list(tmp_path.glob("zotta-*"))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux's prlimit")
def test_without_free_file_descriptors_it_stops_all_the_same() -> None:
    with served.serving() as server:
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used, used))
        waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        assert server.stop() == 0
        for connection in waiting:
            connection.close()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux's prlimit")
def test_a_full_disk_is_no_reason_to_stop(images: Any, tmp_path: Path) -> None:
    flags = ("--state", tmp_path, "--save-every", "1", "--deadline", "60")
    with served.serving(*flags) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        feed(server, images, 0, 64)
        assert server.get(ADAPTATION)["steps"] > 0
        reply = server.request("POST", f"{ADAPTATION}/snapshots")
        assert reply.status == 507
        assert str(tmp_path) not in reply.json["error"]
        assert server.post(f"{ADAPTATION}/reset")["steps"] == 0
        assert server.stop() == 0
        assert any("cannot write" in line for line in server.lines)
        assert not any("Traceback" in line for line in server.lines)
    assert not list(tmp_path.glob(".*.part"))


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


def test_json_logs(images: Any) -> None:
    with served.serving("--log", "json") as server:
        Client(server.port).infer(images[:1])
        server.stop()
        entries = [json.loads(line) for line in server.lines]
    (access,) = [entry for entry in entries if entry.get("path") == INFER]
    assert (access["method"], access["status"], access["level"]) == ("POST", 200, "info")
    assert access["seconds"] > 0
    assert all({"time", "level", "message"} <= set(entry) for entry in entries)


def resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


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


def test_flags_win_over_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.toml").write_text(
        'adapt = "off"\nmax_wait = 1\nbatch_size = 7\nmax_requests = 3\n[settings]\npairs = 2\n'
    )
    from zotta_edge.runtime.service.config import load

    environment = {"ZOTTA_BATCH_SIZE": "8", "ZOTTA_MAX_REQUESTS": "9", "ZOTTA_STATE": ""}
    config, settings = load({"max_requests": 5, "host": None}, environment, tmp_path / "serve.toml")
    assert (config.adapt, config.max_wait, config.batch_size) == ("off", 1.0, 8)
    assert (config.max_requests, config.state, config.host) == (5, None, "127.0.0.1")
    assert settings == {"pairs": 2}
    for variable in [name for name in os.environ if name.startswith("ZOTTA_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("ZOTTA_CONFIG", str(tmp_path / "serve.toml"))
    monkeypatch.setenv("ZOTTA_ADAPT", "background")
    with served.serving("--set", "seed=3") as server:
        status = server.get(ADAPTATION)
        assert (status["mode"], status["settings"]["pairs"]) == ("background", 2)
        assert status["settings"]["seed"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch-size = 3", "no option is called batch-size: did you mean batch_size?"),
        ("batch_size = 'x'", "expected a whole number"),
        ("batch_size = 1.5", "expected a whole number"),
        ("batch_size = true", "expected a whole number"),
        ("batch_size = 0", "batch_size is 0: expected a number at least 1"),
        ("adapt = 'sometimes'", "expected one of inline, background, off"),
        ("settings = 3", "must be a table"),
        ("[settings]\npears = 2", "did you mean pairs"),
        ("not toml", "not valid TOML"),
    ],
)
def test_bad_configuration_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "serve.toml").write_text(text)
    command = [sys.executable, "-m", "zotta_edge", "serve", "--port", "0"]
    done = subprocess.run(
        [*command, "--config", str(tmp_path / "serve.toml")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


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
