"""Eight clients on a decoder's service at once: is everyone answered as if alone?

    python benchmarks/trust/text_concurrency.py --requests 400
    python benchmarks/trust/text_concurrency.py --requests 400 --method zotta

Each asks in one piece or as a stream, gives up in the middle now and then, and one in twenty
requests resets, pauses, resumes, takes a snapshot or restores it. Without a method, every answer
that is waited for must be the one that a client alone gets, letter for letter; with one, answers
may differ while it learns, and must be those again after a reset. Afterwards as many as the service
has places for must find one.
"""

import argparse
import json
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from http_requests import resident
from requests_made import request
from study import Record
from text_requests import ADAPTATION, GENERATE, STREAM

from zotta_edge.models import embedded

import served  # isort: skip

CLIENTS = 8
GIVEN_UP, STEERED = 0.25, 0.05  # shares of the requests
QUESTIONS = (
    "how many digits are there?",
    "what is the first digit?",
    "what is the largest digit?",
    "is there a 7?",
)
PLACES = 64  # requests that the service works on at once, by default
Rng = np.random.Generator


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("text concurrency")
    with TemporaryDirectory() as folder, served.serving(*_flags(args, folder)) as server:
        alone = [_answer(server, number, streamed=False) for number in range(len(QUESTIONS))]
        before = resident(server)
        clients = [
            threading.Thread(target=_ask, args=(record, server, alone, args, client))
            for client in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        _afterwards(record, server, alone)
        print(f"memory {before:.0f} MB, {resident(server) - before:+.1f} MB")
        record.require(server.stop() == 0, "the service did not end in order")
        traces = [line for line in server.lines if "Traceback" in line or "ERROR" in line]
        record.require(not traces, f"{len(traces)} errors in the log: {traces[:3]}")
    return record.close()


def _flags(args: argparse.Namespace, folder: str) -> list[str | Path]:
    flags: list[str | Path] = ["--model", embedded.VLM, "--state", folder]
    return [*flags, "--method", args.method] if args.method else flags


def _ask(
    record: Record, server: served.Server, alone: list[str], args: argparse.Namespace, client: int
) -> None:
    rng = np.random.default_rng([args.seed, client])
    for _ in range(args.requests // CLIENTS):
        number, chance = int(rng.integers(len(QUESTIONS))), rng.random()
        with record.step(f"client {client}"):
            if chance < STEERED:
                _steer(record, server, rng)
            elif chance < STEERED + GIVEN_UP:
                _give_up(server, number, rng)
                record.saw("given up")
            else:
                text = _answer(server, number, streamed=bool(rng.random() < 0.5))
                same = text == alone[number]
                record.saw("answered as alone" if same else "answered otherwise")
                record.require(same or args.method, f"{QUESTIONS[number]} {text!r}: not as alone")


def _asked(number: int, adapt: bool) -> bytes:
    question = {"text_input": QUESTIONS[number % len(QUESTIONS)], "max_tokens": 8, "adapt": adapt}
    return json.dumps(question).encode()


def _answer(server: served.Server, number: int, streamed: bool, adapt: bool = True) -> str:
    reply = server.request("POST", STREAM if streamed else GENERATE, _asked(number, adapt))
    if reply.status != 200:
        raise AssertionError(f"{reply.status} {reply.body[:200]!r}")
    if not streamed:
        return str(reply.json["text_output"])
    events = [json.loads(line[6:]) for line in reply.body.decode().split("\n") if line[:6] == _DATA]
    if not events[-1].get("done"):
        raise AssertionError(f"a stream ends early: {events[-1]}")
    return "".join(event["text_output"] for event in events)


_DATA = "data: "


def _give_up(server: served.Server, number: int, rng: Rng) -> None:
    """Leave before the answer, or after the first bytes of it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request((GENERATE, STREAM)[rng.integers(2)], _asked(number, True)))
        if rng.random() < 0.5:
            connection.recv(int(rng.integers(1, 200)))


def _steer(record: Record, server: served.Server, rng: Rng) -> None:
    action = ("reset", "pause", "resume", "snapshots", "restore")[rng.integers(5)]
    if action == "restore":
        known = server.get(f"{ADAPTATION}/snapshots")["snapshots"]
        if not known:
            return
        action = f"snapshots/{known[int(rng.integers(len(known)))]['id']}/restore"
    server.post(f"{ADAPTATION}/{action}")
    record.saw("steered")


def _afterwards(record: Record, server: served.Server, alone: list[str]) -> None:
    """Reset, it answers as it did at first; and as many as before find a place."""
    server.post(f"{ADAPTATION}/reset")
    answers: list[str] = []

    def ask(number: int) -> None:
        with record.step("afterwards"):
            answers.append(_answer(server, number, streamed=number % 8 > 3, adapt=False))

    together = [threading.Thread(target=ask, args=(number,)) for number in range(PLACES)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    record.require(len(answers) == PLACES, f"{len(answers)} of {PLACES} found a place afterwards")
    record.require(set(answers) == set(alone), "a reset model does not answer as at first")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--method", help="of adapting; default: none, as the service has it")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
