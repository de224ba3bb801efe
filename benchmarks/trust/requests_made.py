"""Requests that no client would send, as bytes: damaged, endless, contradictory, enormous."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from study import stream

import served  # isort: skip

Rng = np.random.Generator
LENGTHS = (
    *("-1", "0", "1", "+5", "0x10", "1e3", "1 1", "1, 1", "", " ", "\xb2", "9" * 5000),
    *(str(2**31), str(2**32), str(2**63 - 1), str(2**63), str(2**64), str(33 * 2**20)),
)
_VALUES = (b"null", b"[]", b"{}", b"-1", b"1e999", b"true", b"9" * 30, b"\xff\0", b'"', b"NaN")
_SHAPES = (
    [2**62, 4],
    [2**31, 2**31, 2**31],
    [-1, 32, 32, 1],
    [0],
    [],
    [1] * 40,
    [1e9],
    ["1"],
    None,
)
_TARGETS = (served.INFER, served.CLASSIFY, "/", "/v2", "/metrics", served.ADAPTATION)
_ODD = (
    *("/../../etc/passwd", "/%00", "//evil.example/", "*", "http://evil.example/", "?", "/\xff"),
    *(f"{served.CLASSIFY}?top=-1", f"{served.CLASSIFY}?adapt=2", "/" + "a" * 9000, "/%ff%fe"),
    *(f"{served.ADAPTATION}/snapshots/..%2f..%2fx/restore", "/v2/models/x/infer", "/v2/\t"),
)
_METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "CONNECT", "TRACE", "get", "", "P\0ST", "PRI")
_ADMIN = ("pause", "resume", "reset", "snapshots", "snapshots/20260101T000000000Z-1/restore")


@dataclass(frozen=True)
class Made:
    """What is sent, and whether an answer must come."""

    kind: str
    content: bytes
    whole: bool = True


def head(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    """A request's head, by hand: no library would write most of these."""
    fields = {"Host": "localhost", "Content-Length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {one}" for name, one in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request(target: str, body: bytes, **headers: str) -> bytes:
    return head("POST", target, body, **headers) + body


def _infer(rng: Rng) -> tuple[bytes, str]:
    """A sound body of `infer`, and the length of its header."""
    body, headers = served.infer_body(stream()[: int(rng.integers(1, 3))])
    return body, headers["Inference-Header-Content-Length"]


def _text(rng: Rng, **changes: object) -> bytes:
    entry = {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [0.0] * 1024}
    return json.dumps({"inputs": [entry | changes], "id": "x"}).encode()


def file(rng: Rng) -> bytes:
    kind = (".png", ".jpg", ".webp", ".bmp")[rng.integers(4)]
    return bytes(cv2.imencode(kind, stream()[int(rng.integers(100))])[1])


def broken(body: bytes, rng: Rng) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.integers(1, 6)):
        at = int(rng.integers(min(len(changed), 300) or 1))
        match rng.integers(3):
            case 0:
                changed[at : at + 1] = rng.bytes(1)
            case 1:
                del changed[at : at + int(rng.integers(1, 9))]
            case _:
                changed[at:at] = _VALUES[rng.integers(len(_VALUES))]
    return bytes(changed)


def _damaged_body(rng: Rng) -> Made:
    body, length = _infer(rng)
    match rng.integers(3):
        case 0:
            content = request(
                served.INFER, broken(body, rng), Inference_Header_Content_Length=length
            )
        case 1:
            content = request(served.INFER, broken(_text(rng), rng))
        case _:
            content = request(served.CLASSIFY, broken(file(rng), rng))
    return Made("damaged bodies", content)


def _bad_shape(rng: Rng) -> Made:
    shape = _SHAPES[rng.integers(len(_SHAPES))]
    kind = ("FP32", "UINT8", "BYTES", "FP16", "INT64", "")[rng.integers(6)]
    return Made("bad shapes", request(served.INFER, _text(rng, shape=shape, datatype=kind)))


def _header_length(rng: Rng) -> Made:
    body, _ = _infer(rng)
    value = LENGTHS[rng.integers(len(LENGTHS))]
    return Made(
        "bad header lengths", request(served.INFER, body, Inference_Header_Content_Length=value)
    )


def _content_length(rng: Rng) -> Made:
    """Too long a promise waits for the rest: no answer need come."""
    body, value = _text(rng), LENGTHS[rng.integers(len(LENGTHS))]
    return Made(
        "bad content lengths", head("POST", served.INFER, body, Content_Length=value), False
    )


def _chunks(rng: Rng) -> Made:
    body = _text(rng)[:400]
    size = (b"1", b"01", b"-1", b"FFFFFFFFFFFFFFFF", b"1;x=y", b"g", b"")[rng.integers(7)]
    parts = b"".join(size + b"\r\n" + body[at : at + 1] + b"\r\n" for at in range(len(body)))
    start = head("POST", served.INFER, Transfer_Encoding="chunked").replace(
        b"Content-Length: 0\r\n", b"" if rng.random() < 0.8 else b"Content-Length: 9\r\n"
    )
    whole = size == b"1" and b"Content-Length" not in start
    return Made("chunks of one byte", start + parts + b"0\r\n\r\n", whole)


def _packed(rng: Rng) -> Made:
    size = int(rng.choice([100, 10_000, 40 * 2**20], p=[0.5, 0.49, 0.01]))
    pack, name = ((gzip.compress, "gzip"), (zlib.compress, "deflate"))[rng.integers(2)]
    body = pack(b" " * size)
    if rng.random() < 0.3:
        body = broken(body, rng)
    name = name if rng.random() < 0.9 else ("br", "gzip, gzip", "\xff", "")[rng.integers(4)]
    return Made("compressed bombs", request(served.INFER, body, Content_Encoding=name))


def _deep(rng: Rng) -> Made:
    depth = int(rng.choice([10_000, 100_000]))
    opening = (b"[", b'{"a":')[rng.integers(2)]
    closing = b"" if rng.random() < 0.5 else (b"]" if opening == b"[" else b"}") * depth
    return Made("deep JSON", request(served.INFER, opening * depth + closing))


def _lines(rng: Rng) -> Made:
    """Request lines and headers that are none."""
    method = _METHODS[rng.integers(len(_METHODS))]
    targets = _TARGETS + _ODD
    target = targets[rng.integers(len(targets))]
    content = head(method, target)
    match rng.integers(6):
        case 0:
            content = content.replace(b"HTTP/1.1", (b"HTTP/9.9", b"", b"HTP")[rng.integers(3)])
        case 1:
            content = content.replace(b"\r\n", b"\n")
        case 2:
            content = broken(content, rng)
        case 3:
            content = content.replace(b"\r\n\r\n", b"\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
        case 4:
            content = content.replace(b"\r\n\r\n", b"\r\nA: b" * 500 + b"\r\n\r\n")
    return Made("request lines and headers", content, False)


def _pipelined(rng: Rng) -> Made:
    made = [KINDS[int(rng.integers(4))](rng).content for _ in range(rng.integers(2, 6))]
    return Made("pipelined", b"".join([head("GET", "/v2/health/live"), *made]))


def _cut_short(rng: Rng) -> Made:
    content = _damaged_body(rng).content
    return Made("cut short", content[: int(rng.integers(len(content)))], False)


def _steering(rng: Rng) -> Made:
    target = f"{served.ADAPTATION}/{_ADMIN[rng.integers(len(_ADMIN))]}"
    return Made("steering", request(target, rng.bytes(int(rng.integers(20)))))


KINDS: tuple[Callable[[Rng], Made], ...] = (
    _damaged_body,
    _bad_shape,
    _header_length,
    _steering,
    _content_length,
    _chunks,
    _packed,
    _deep,
    _lines,
    _pipelined,
    _cut_short,
)
_SHARES = (0.3, 0.1, 0.1, 0.05, 0.1, 0.02, 0.04, 0.02, 0.15, 0.07, 0.05)


def requests(count: int, seed: list[int]) -> Iterator[Made]:
    rng = np.random.default_rng(seed)
    for kind in rng.choice(len(KINDS), count, p=_SHARES):
        yield KINDS[kind](rng)
