"""The generate extension, as Triton and the Open Inference Protocol have it.

`text_input` and `parameters` in, `text_output` out. As for Triton, parameters may also stand
beside `text_input`, and so does a picture: `image`, a file in base64.
"""

import binascii
import json
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from zotta_edge.options import describe, option
from zotta_edge.runtime.generate.sampling import SamplingSettings
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.protocol import VERSION, as_object, identity, read_json

_TEXT, _IMAGE, _STOP = "text_input", "image", "stop"
_STOPS = 5  # the protocol's limit
_BASE64 = "base64,"  # the end of what data URLs begin with


@dataclass(frozen=True)
class Parameters(SamplingSettings):
    """The parameters of a request.

    >>> Parameters().replace({"max_token": 4})
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: no parameter is called max_token: did you mean max_tokens?
    """

    noun: ClassVar[str] = "parameter"
    max_tokens: int = option(20, "tokens of the answer, at most; the protocol's default", low=1)
    adapt: bool = option(True, "whether the model may learn from the request")
    stream: bool = option(False, "for clients that send it: the path decides")

    def over(self, settings: GenerationSettings) -> GenerationSettings:
        """`settings` with what the request asked for."""
        names = [each.name for each in describe(SamplingSettings)]
        return replace(settings, **{name: getattr(self, name) for name in (*names, "max_tokens")})


@dataclass(frozen=True)
class GenerateRequest:
    """A parsed request; the image file is not decoded yet."""

    text: str
    image: bytes | None = None
    stop: tuple[str, ...] = ()  # texts that end an answer and do not belong to it
    parameters: Parameters = field(default_factory=Parameters)
    id: str | None = None


def parse(body: bytes, longest: int) -> GenerateRequest:
    """Read the body of a request with a text of at most so many characters.

    >>> parse(b'{"text_input": "how many?", "parameters": {"max_tokens": 4}}', 100).parameters
    Parameters(temperature=0.0, top_k=0, top_p=1.0, seed=0, max_tokens=4, adapt=True, stream=False)
    """
    request = dict(as_object(read_json(body), "the request"))
    text, image, name = (request.pop(key, None) for key in (_TEXT, _IMAGE, "id"))
    name = identity(name)
    given = as_object(request.pop("parameters", {}), "parameters")
    given = request | given
    stop = given.pop(_STOP, [])
    checked, stops = _text(text, longest), _stops(stop)
    _check_unicode([checked, name or "", *stops, *given])
    parameters = Parameters().replace(given)
    return GenerateRequest(checked, _file(image), stops, parameters, name)


def _check_unicode(texts: Iterable[str]) -> None:
    r"""JSON can write half of a surrogate pair, \ud800, which nobody can read or send back."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ServiceError(400, "the request holds half of a surrogate pair: no text") from None


def _text(value: Any, longest: int) -> str:
    if not isinstance(value, str) or not value:
        raise ServiceError(400, f"{_TEXT} must be a text, and not an empty one")
    if len(value) > longest:
        raise ServiceError(413, f"{_TEXT} has {len(value)} characters: at most {longest}")
    return value


def _file(value: Any) -> bytes | None:
    if isinstance(value, list) and len(value) == 1:  # as Triton's tensors have it
        value = value[0]
    if value is None:
        return None
    try:
        return b64decode(value.rpartition(_BASE64)[2], validate=True)
    except (AttributeError, ValueError, binascii.Error):
        raise ServiceError(400, f"{_IMAGE} must be one image file in base64") from None


def _stops(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > _STOPS:
        raise ServiceError(400, f"{_STOP} must be a list of at most {_STOPS} texts")
    if not all(isinstance(text, str) and text for text in texts):
        raise ServiceError(400, f"{_STOP} must hold texts, none of them empty")
    return tuple(texts)


def respond(model: str, request: GenerateRequest, text: str) -> dict[str, Any]:
    """The answer, or a piece of it, as a JSON object."""
    response: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if request.id is not None:
        response["id"] = request.id
    return response | {"text_output": text}


def metadata(name: str, seeing: bool) -> dict[str, Any]:
    """What goes in and comes out."""
    inputs = [_TEXT, _IMAGE] if seeing else [_TEXT]
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": each, "datatype": "BYTES", "shape": [1]} for each in inputs],
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1]}],
    }


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event.

    >>> event({"text_output": "4"})
    b'data: {"text_output": "4"}\\n\\n'
    """
    return b"data: " + json.dumps(content, allow_nan=False).encode() + b"\n\n"
