"""Requests of the generate extension."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.generate.sampling import choose
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.service.http.errors import ServiceError
from zotta_edge.runtime.service.http.generate_protocol import Parameters, parse


def _parsed(**request: Any) -> Any:
    return parse(json.dumps(request).encode(), longest=100)


def test_parameters_may_stand_beside_the_text() -> None:
    asked = _parsed(text_input="how many?", max_tokens=3, parameters={"temperature": 0.5})
    assert (asked.text, asked.parameters) == ("how many?", Parameters(0.5, max_tokens=3))
    settings = asked.parameters.over(GenerationSettings(max_tokens=9))
    assert (settings.max_tokens, settings.temperature) == (3, 0.5)


@pytest.mark.parametrize("wrapped", [str, lambda text: [text], "data:image/png;base64,{}".format])
def test_an_image_is_a_file_in_base64(wrapped: Any) -> None:
    text = base64.b64encode(b"\x89PNG").decode()
    assert _parsed(text_input="what?", image=wrapped(text)).image == b"\x89PNG"


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        ({}, 400, "text_input"),
        ({"text_input": ""}, 400, "text_input"),
        ({"text_input": ["a"]}, 400, "text_input"),
        ({"text_input": "a" * 101}, 413, "at most 100"),
        ({"text_input": "a", "image": "%"}, 400, "base64"),
        ({"text_input": "a", "image": 5}, 400, "base64"),
        ({"text_input": "a", "image": ["YQ==", "YQ=="]}, 400, "one image"),
        ({"text_input": "a", "stop": [""]}, 400, "empty"),
        ({"text_input": "a", "stop": ["x"] * 6}, 400, "at most 5"),
        ({"text_input": "a", "parameters": []}, 400, "parameters"),
        ({"text_input": "a", "id": 3}, 400, "id"),
        ({"text_input": "a", "id": "x" * 1001}, 400, "at most 1000"),  # in every event of a stream
        ({"text_input": "a\ud800"}, 400, "surrogate"),
        ({"text_input": "a", "id": "\udc00"}, 400, "surrogate"),
        ({"text_input": "a", "stop": ["\ud800"]}, 400, "surrogate"),
        ({"text_input": "a", "\ud800": 1}, 400, "surrogate"),
    ],
)
def test_bad_requests_are_refused_in_one_line(request_: Any, status: int, why: str) -> None:
    with pytest.raises(ServiceError, match=why) as refused:
        _parsed(**request_)
    assert refused.value.status == status


@pytest.mark.parametrize(
    "parameters",
    [
        *({"max_tokens": 0}, {"max_tokens": "4"}, {"top_p": 2}, {"beams": 2}, {"adapt": 1}),
        *({"temperature": 10**400}, {"seed": -(10**400)}, {"top_k": "9" * 10**6}),
    ],
)
def test_bad_parameters_are_named(parameters: Any) -> None:
    with pytest.raises(ZottaError, match=next(iter(parameters))) as refused:
        _parsed(text_input="a", parameters=parameters)
    assert len(str(refused.value)) < 200


def test_a_name_of_megabytes_costs_no_more_than_a_short_one() -> None:
    """Similar names were looked for: 31 MB took eight seconds and 1.4 GB."""
    with pytest.raises(ZottaError, match="no parameter is called xxx") as refused:
        _parsed(text_input="a", **{"x" * 10**7: 1})
    assert len(str(refused.value)) < 200


def test_numbers_of_hundreds_of_digits() -> None:
    """They were answered with 500."""
    huge = 10**400
    asked = _parsed(text_input="a", temperature=1, top_k=huge, seed=huge, max_tokens=huge)
    settings = asked.parameters.over(GenerationSettings())
    assert settings.max_tokens == huge
    logits = np.array([[0.0, 9.0]], np.float32)
    assert choose(logits, settings, np.random.default_rng(settings.seed)) in (0, 1)
