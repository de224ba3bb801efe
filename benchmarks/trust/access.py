"""Who gets in: every route, without a token, with wrong ones, and from other web pages.

    python benchmarks/trust/access.py
    python benchmarks/trust/access.py --generate

Starts real services: on loopback without a token, and with one, on loopback and on all addresses.
Routes are the app's own, so a new one is asked as well. A refused request must leave the model's
state alone, and no answer or log line may hold the token.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from starlette.routing import Route
from study import Record

from zotta_edge import AdaptiveModel
from zotta_edge.errors import ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.service.http.access import Access
from zotta_edge.runtime.service.http.app import create_app
from zotta_edge.runtime.service.http.errors import ServiceError

import served  # isort: skip  (the path to it is made by `study`)

TOKEN = "correct-horse-battery-staple"
WRONG = (
    {},
    {"Authorization": TOKEN},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer {TOKEN.upper()}"},
    {"Authorization": f"Bearer {TOKEN} {TOKEN}"},
    {"Authorization": f"Bearer {TOKEN[:8]}\xfc"},
    {"Cookie": f"token={TOKEN}"},
    {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1;host=localhost"},
)
PAGES = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": ""},
)
REBOUND = ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "0.0.0.0", "[::1", "")
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")
LONG = 2**20  # characters of the token that is guessed at against the clock
READS = ("GET", "HEAD", "OPTIONS")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--generate", action="store_true", help="of a decoder, not a classifier")
    model = embedded.VLM if parser.parse_args(argv).generate else embedded.MODEL
    record = Record("access")
    beyond_loopback(record)
    pages(record, model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "token"
        file.write_text(TOKEN)
        for host in ("127.0.0.1", "0.0.0.0"):
            tokens(record, model, host, file)
    comparison(record)
    return record.close()


def routes(model: Path) -> Iterator[tuple[str, str]]:
    """Every method of every path that the app has."""
    kind = AdaptiveDecoder if model == embedded.VLM else AdaptiveModel
    app = create_app(kind.load(model, threads=1), model.stem)
    names = {"model": model.stem, "version": "1", "id": "20260101T000000000Z-1"}
    for route in app.routes:
        assert isinstance(route, Route)
        path = re.sub(r"{(\w+)}", lambda found: names[found[1]], route.path)
        for method in METHODS:
            yield method, path


def beyond_loopback(record: Record) -> None:
    """Without a token there is no service but on loopback."""
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        command = [sys.executable, "-m", "zotta_edge", "serve", "--port", "0", "--host", host]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        refused = done.returncode == 1 and done.stderr.count("\n") == 1
        record.require(refused and "--token-file" in done.stderr, f"{host}: {done.stderr}")
        record.saw("binds beyond loopback refused", int(refused))


def pages(record: Record, model: Path) -> None:
    """What a browser on this machine sends for a page of somebody else."""
    with served.serving("--model", model) as server:
        before = untouched(server, model)
        for (method, path), headers in product(routes(model), PAGES):
            reply = server.request(method, path, b"", headers)
            expect(record, "cross-site", method, path, headers, reply, method not in READS, 403)
        for (method, path), host in product(routes(model), REBOUND):
            reply = server.request(method, path, b"", {"Host": host})
            expect(record, "rebound name", method, path, {"Host": host}, reply, True, 403)
        record.require(
            untouched(server, model) == before, "a page of somebody else changed the model"
        )
        framed = server.request("GET", "/").headers.get("content-security-policy", "")
        record.require("frame-ancestors 'none'" in framed, "the dashboard can be framed")
        server.stop()


def tokens(record: Record, model: Path, host: str, file: Path) -> None:
    with served.serving("--model", model, "--token-file", file, "--host", host) as server:
        before = untouched(server, model)
        for (method, path), headers in product(routes(model), WRONG):
            reply = server.request(method, path, b"", headers)
            expect(record, "wrong token", method, path, headers, reply, method not in READS, 401)
        record.require(
            untouched(server, model) == before, "a request without the token did something"
        )
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        reply = server.request("POST", f"{adaptation(model)}/reset", b"", allowed)
        record.require(reply.status == 200, f"the token is refused: {reply.status}")
        server.stop()
        record.require(TOKEN not in "".join(server.lines), "the log holds the token")


def expect(
    record: Record,
    kind: str,
    method: str,
    path: str,
    headers: Mapping[str, str],
    reply: served.Reply,
    refused: bool,
    status: int,
) -> None:
    """Refused with the status, or read as documented; and never readable for other pages."""
    where = f"{method} {path} {headers}: {reply.status}"
    record.require(reply.status == status if refused else reply.status < 500, where)
    record.require(TOKEN.encode() not in reply.body, f"{where} tells the token")
    shared = [name for name in reply.headers if name.startswith("access-control-")]
    record.require(not shared, f"{where} lets other pages read: {shared}")
    record.saw(f"{kind} {'refused' if refused else 'reads'}")


def adaptation(model: Path) -> str:
    return f"/v2/models/{model.stem}/adaptation"


def untouched(server: served.Server, model: Path) -> object:
    """What any change of the model would show in."""
    seen = server.get(adaptation(model))
    parts = ("paused", "steps", "images", "batches", "answered", "resets", "distance")
    return [seen[part] for part in parts], server.get(f"{adaptation(model)}/snapshots")


def comparison(record: Record) -> None:
    """A guess that is right but for its end must not take longer than one that is wrong at once.

    The best of interleaved calls: what the machine does beside cancels out. Comparing with `==`
    would stop at the first difference, a thousand times sooner on a token of this length.
    """
    access = Access("a" * LONG, only_local=False)
    guesses = {"first": "b" + "a" * (LONG - 1), "last": "a" * (LONG - 1) + "b"}
    best = dict.fromkeys(guesses, float("inf"))
    for _ in range(200):
        for name, guess in guesses.items():
            best[name] = min(best[name], _timed(access, guess))
    ratio = best["last"] / best["first"]
    record.require(0.8 < ratio < 1.25, f"guesses take {ratio:.2f} times as long when almost right")
    print(f"time of a guess wrong in its last character over one wrong in its first: {ratio:.3f}")


def _timed(access: Access, guess: str) -> float:
    headers = {"host": "localhost", "authorization": f"Bearer {guess}"}
    started = time.perf_counter()
    try:
        access.check("POST", headers)
    except (ServiceError, ZottaError):
        return time.perf_counter() - started
    raise AssertionError("a wrong token was accepted")


if __name__ == "__main__":
    sys.exit(main())
