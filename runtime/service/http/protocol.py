"""Tensors of the Open Inference Protocol (KServe v2), in JSON and in its binary extension."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import IMAGE, LOGITS, ModelInfo
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.runtime.service.http.errors import ServiceError

VERSION = "1"  # of the one model that is served
PROBABILITIES, LABEL = "probabilities", "label"
OUTPUTS = (LOGITS, PROBABILITIES, LABEL)
HEADER_LENGTH = "Inference-Header-Content-Length"

_TYPES = {"UINT8": "|u1", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_VALUES, _LISTS = 4_000_000, 200_000  # in JSON, which takes half a second to read then
_ID = 1000  # characters: it comes back with the answer
_NUMBER = 24  # bytes of a float32 in JSON, with what separates it from the next
_BYTES = "BYTES"  # image files, each with its length before it


@dataclass(frozen=True)
class InferRequest:
    """A parsed request: pixels or prepared tensors, or image files that are not decoded yet."""

    images: NDArray[Any] | list[bytes]
    id: str | None
    adapt: bool
    outputs: tuple[tuple[str, bool], ...]  # name, whether its data goes after the JSON


def metadata(name: str, info: ModelInfo) -> dict[str, Any]:
    axes = list(image_axes(info.preprocessing))
    scores = [-1, info.classes]
    own = [
        {"name": output, "datatype": "FP32", "shape": [-1, *axes]}
        for output, axes in info.outputs.items()
    ]
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": IMAGE, "datatype": "FP32", "shape": [-1, *axes]}],
        "outputs": own
        or [
            {"name": LOGITS, "datatype": "FP32", "shape": scores},
            {"name": PROBABILITIES, "datatype": "FP32", "shape": scores},
            {"name": LABEL, "datatype": _BYTES, "shape": [-1]},
        ],
    }


def known_outputs(info: ModelInfo) -> tuple[str, ...]:
    """Those of the network, or the classifier's three."""
    return tuple(info.outputs) or OUTPUTS


def parse(
    body: bytes, header_length: str | None, most: int, known: Sequence[str] = OUTPUTS
) -> InferRequest:
    """Read the body of an infer request of at most so many images; `known` outputs may be asked.

    What is wrong with it is said in one line.
    """
    length = _header_length(header_length, len(body))
    request = as_object(read_json(body[:length] if length < len(body) else body), "the request")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise ServiceError(400, f"expected one input, {IMAGE}")
    images, used = _tensor(as_object(inputs[0], "the input"), memoryview(body)[length:], most)
    if used != len(body) - length:
        raise ServiceError(400, f"{len(body) - length} bytes of binary data, expected {used}")
    parameters = as_object(request.get("parameters", {}), "parameters")
    return InferRequest(
        images,
        identity(request.get("id")),
        _flag(parameters, "adapt", True),
        _requested(request.get("outputs"), _flag(parameters, "binary_data_output", False), known),
    )


def read_json(text: bytes) -> Any:
    """Parsed; nobody else's request moves meanwhile, so what takes seconds is refused."""
    lists = text.count(b"[") + text.count(b"{") + text.count(b'"') // 2  # a text takes as much
    if lists > _LISTS or text.count(b",") > _VALUES:
        raise ServiceError(
            413, f"more than {_VALUES} values or {_LISTS} lists and texts in JSON: send binary data"
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ServiceError(400, "the request is not valid JSON") from None


def _header_length(text: str | None, size: int) -> int:
    if text is None:
        return size
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or int(text) > size:
        raise ServiceError(400, f"{HEADER_LENGTH} is {text[:20]!r} for a body of {size} bytes")
    return int(text)


def identity(value: Any) -> str | None:
    """What a request calls itself; every answer and every event of a stream repeats it."""
    if value is not None and not (isinstance(value, str) and len(value) <= _ID):
        raise ServiceError(400, f"id must be a text of at most {_ID} characters")
    return value


def as_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ServiceError(400, f"{what} must be a JSON object")
    return value


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ServiceError(400, f"{name} must be true or false")
    return value


def _tensor(
    entry: dict[str, Any], binary: memoryview, most: int
) -> tuple[NDArray[Any] | list[bytes], int]:
    """The input, and how many bytes of the binary part it took."""
    if entry.get("name") != IMAGE:
        raise ServiceError(
            400, f"no input is called {str(entry.get('name'))[:40]!r}: expected {IMAGE}"
        )
    parameters = as_object(entry.get("parameters", {}), "parameters")
    if "shared_memory_region" in parameters:
        raise ServiceError(400, "shared memory is not supported: send the data")
    shape, datatype = _shape(entry.get("shape")), entry.get("datatype")
    if shape[0] > most:
        raise ServiceError(413, f"{shape[0]} images in one request: at most {most}")
    if datatype not in (*_TYPES, _BYTES):
        known = ", ".join((*_TYPES, _BYTES))
        raise ServiceError(400, f"datatype {str(datatype)[:20]!r} is not one of {known}")
    size = parameters.get("binary_data_size")
    if size is None:
        return _from_json(entry.get("data"), datatype, shape), 0
    if type(size) is not int or not 0 <= size <= len(binary):
        raise ServiceError(
            400, f"binary_data_size is {str(size)[:20]}, but {len(binary)} bytes follow"
        )
    return _from_binary(binary[:size], datatype, shape), size


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= 4:
        raise ServiceError(400, "shape must be a list of one to four sizes")
    if not all(type(size) is int and 0 < size < 2**31 for size in value):
        raise ServiceError(400, "shape must hold whole numbers from 1 up")
    return tuple(value)


def _from_json(data: Any, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if datatype == _BYTES:
        raise ServiceError(400, "image files cannot stand in JSON: send BYTES as binary data")
    if not isinstance(data, list):
        raise ServiceError(400, f"input {IMAGE} has no data")
    try:
        values = np.array(_leaves(data))
    except (ValueError, OverflowError):  # ragged, or a number of hundreds of digits
        raise ServiceError(400, "data is not a regular array of numbers") from None
    if values.dtype.kind not in ("iu" if datatype == "UINT8" else "iuf"):
        raise ServiceError(400, f"data does not consist of {datatype} numbers")
    if datatype == "UINT8" and (values.min(initial=0) < 0 or values.max(initial=0) > 255):
        raise ServiceError(400, "UINT8 data must be from 0 to 255")
    _check_count(values.size, shape)
    with np.errstate(over="ignore"):  # becomes infinite, which is refused with the other kinds
        return values.astype(_TYPES[datatype]).reshape(shape)


def _leaves(data: list[Any]) -> list[Any]:
    """The elements of nested lists, None for others than numbers: no text sets an array's width."""
    while list in (kinds := set(map(type, data))):
        if len(kinds) > 1 or len(set(map(len, data))) > 1:
            raise ValueError("ragged")
        data = list(chain.from_iterable(data))
    return data if kinds <= {int, float} else [None]


def _from_binary(
    data: memoryview, datatype: str, shape: tuple[int, ...]
) -> NDArray[Any] | list[bytes]:
    if datatype == _BYTES:
        return _split(data, prod(shape))
    kind = np.dtype(_TYPES[datatype])
    if len(data) != prod(shape) * kind.itemsize:
        expected = prod(shape) * kind.itemsize
        raise ServiceError(400, f"{datatype} {list(shape)} takes {expected} bytes, not {len(data)}")
    return np.frombuffer(data, kind).reshape(shape)


def _check_count(count: int, shape: tuple[int, ...]) -> None:
    if count != prod(shape):
        raise ServiceError(400, f"{count} elements for shape {list(shape)}")


def _split(data: memoryview, count: int) -> list[bytes]:
    files, at = [], 0
    for _ in range(count):
        if at + 4 > len(data):
            raise ServiceError(400, "BYTES data ends early")
        (length,) = struct.unpack_from("<I", data, at)
        at += 4 + length
        if at > len(data):
            raise ServiceError(400, "BYTES data ends early")
        files.append(bytes(data[at - length : at]))
    if at < len(data):
        raise ServiceError(400, f"BYTES data goes on after its {count} elements")
    return files


def _requested(entries: Any, binary: bool, known: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    if entries is None or entries == []:
        return tuple((name, binary) for name in known)
    if not isinstance(entries, list) or len(entries) > len(known):
        raise ServiceError(400, f"outputs must be a list of at most {len(known)}")
    objects = [as_object(entry, "an output") for entry in entries]
    asked = tuple(_requested_output(entry, binary, known) for entry in objects)
    if len({name for name, _ in asked}) < len(asked):
        raise ServiceError(400, "outputs names one of them twice")
    return asked


def _requested_output(
    entry: dict[str, Any], binary: bool, known: Sequence[str]
) -> tuple[str, bool]:
    name, parameters = entry.get("name"), as_object(entry.get("parameters", {}), "parameters")
    if name not in known:
        raise ServiceError(
            400, f"no output is called {str(name)[:40]!r}: there are {', '.join(known)}"
        )
    if parameters.get("classification") or "shared_memory_region" in parameters:
        raise ServiceError(
            400, f"only plain outputs are supported: ask for {PROBABILITIES} and {LABEL}"
        )
    return str(name), _flag(parameters, "binary_data", binary)


def answer_size(request: InferRequest, info: ModelInfo) -> int:
    """Bytes of the response at most, about."""
    longest = max(map(len, info.labels), default=4)
    total = 0
    for name, binary in request.outputs:
        values = math.prod(info.outputs.get(name, (info.classes,)))
        is_label = name == LABEL and not info.outputs
        total += longest + 8 if is_label else values * (4 if binary else _NUMBER)
    return len(request.images) * total


def respond(
    model: str,
    request: InferRequest,
    result: Result,
    names: Sequence[str],
    about: Mapping[str, Any],
) -> tuple[bytes, int | None]:
    """The response's body, and the length of its JSON part where binary data follows.

    `names` are the labels of the result's images; `about` goes into the response's parameters.
    """
    entries, chunks = [], []
    for name, binary in request.outputs:
        entry, chunk = _output(name, binary, result, names)
        entries.append(entry)
        chunks.append(chunk)
    response: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if request.id is not None:
        response["id"] = request.id
    response["parameters"] = dict(about)
    response["outputs"] = entries
    text = json.dumps(response, allow_nan=False).encode()
    any_binary = any(binary for _, binary in request.outputs)
    return b"".join([text, *chunks]), len(text) if any_binary else None


def _output(
    name: str, binary: bool, result: Result, names: Sequence[str]
) -> tuple[dict[str, Any], bytes]:
    if name == LABEL and name not in result.outputs:
        entry: dict[str, Any] = {"name": name, "datatype": _BYTES, "shape": [len(names)]}
        encoded = [text.encode() for text in names]
        chunk = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
        data: Any = list(names)
    else:
        scores = {LOGITS: result.logits, PROBABILITIES: result.probabilities}
        values = result.outputs[name] if name in result.outputs else scores[name]
        entry = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
        chunk = values.astype("<f4").tobytes() if binary else b""
        data = None if binary else values.ravel().tolist()
    if binary:
        return entry | {"parameters": {"binary_data_size": len(chunk)}}, chunk
    return entry | {"data": data}, b""
