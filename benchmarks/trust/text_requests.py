"""Requests to a decoder that no client would send: damaged, endless, contradictory, given up."""

import base64
import json
from collections.abc import Callable, Iterator

import numpy as np
from requests_made import LENGTHS, Made, Rng, broken, file, head, request

from zotta_edge.models import embedded

MODEL = f"/v2/models/{embedded.VLM.stem}"
GENERATE, STREAM = f"{MODEL}/generate", f"{MODEL}/generate_stream"
ADAPTATION = f"{MODEL}/adaptation"
QUESTION = {"text_input": "how many digits are there?", "max_tokens": 4}
_TEXTS = (
    *("", "\0", "\ud800", "a\udc00", "\u202e" * 50, "a" * 3000, "a" * 10**6, "<image>" * 9),
    *(None, 5, ["a"], {"a": 1}, "\U0001f600" * 90, "<|im_end|><|endoftext|>", "\r\n\r\ndata: x"),
)
_NAMES = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "adapt", "stream", "id")
_VALUES = (
    *(-1, 0, 1, 10**30, 1e308, -1e308, 1e-320, float("nan"), float("inf"), True, None, [], {}),
    *("", "4", "\ud800", "x" * 10**5, ["a"] * 6, ["x" * 10**5], [""], [None], [["a"]]),
)


def _asked(rng: Rng, **changes: object) -> Made:
    target = (GENERATE, STREAM)[rng.integers(2)]
    return Made("questions", request(target, json.dumps(QUESTION | changes).encode()))


def _damaged(rng: Rng) -> Made:
    target = (GENERATE, STREAM)[rng.integers(2)]
    return Made("damaged bodies", request(target, broken(json.dumps(QUESTION).encode(), rng)))


def _odd_text(rng: Rng) -> Made:
    return _asked(rng, text_input=_TEXTS[rng.integers(len(_TEXTS))])


def _odd_parameter(rng: Rng) -> Made:
    names = [_NAMES[at] for at in rng.integers(0, len(_NAMES), 2)]
    given = {name: _VALUES[rng.integers(len(_VALUES))] for name in names}
    return _asked(rng, **given) if rng.random() < 0.5 else _asked(rng, parameters=given)


def _odd_picture(rng: Rng) -> Made:
    picture = file(rng)
    if rng.random() < 0.8:
        picture = broken(picture, rng)
    text = base64.b64encode(picture).decode()
    return _asked(rng, image=text if rng.random() < 0.9 else text[: int(rng.integers(len(text)))])


def _deep(rng: Rng) -> Made:
    depth = int(rng.choice([10_000, 100_000]))
    return Made("deep JSON", request(GENERATE, b'{"text_input":' + b"[" * depth))


def _content_length(rng: Rng) -> Made:
    body, value = json.dumps(QUESTION).encode(), LENGTHS[rng.integers(len(LENGTHS))]
    return Made("bad content lengths", head("POST", STREAM, body, Content_Length=value), False)


def _given_up(rng: Rng) -> Made:
    """A long answer that nobody waits for."""
    return Made("given up", _asked(rng, text_input="a" * 20, max_tokens=90).content, False)


def _steering(rng: Rng) -> Made:
    action = ("pause", "resume", "reset", "snapshots")[rng.integers(4)]
    return Made("steering", request(f"{ADAPTATION}/{action}", rng.bytes(int(rng.integers(20)))))


def _pipelined(rng: Rng) -> Made:
    made = [_odd_parameter(rng).content for _ in range(rng.integers(2, 5))]
    return Made("pipelined", b"".join([head("GET", "/v2/health/live"), *made]))


KINDS: tuple[Callable[[Rng], Made], ...] = (
    _damaged,
    _odd_text,
    _odd_parameter,
    _odd_picture,
    _deep,
    _content_length,
    _given_up,
    _steering,
    _pipelined,
)
_SHARES = (0.25, 0.1, 0.25, 0.15, 0.02, 0.05, 0.08, 0.05, 0.05)


def requests(count: int, seed: list[int]) -> Iterator[Made]:
    rng = np.random.default_rng(seed)
    for kind in rng.choice(len(KINDS), count, p=_SHARES):
        yield KINDS[kind](rng)
