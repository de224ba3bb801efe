"""A real service of the embedded vision-language model, asked over HTTP."""

import base64
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import served
from served import Reply, Server

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded
from zotta_edge.models.picture_questions import Question, questions
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.questions import Question as Asked
from zotta_edge.runtime.service import create_app

MODEL = f"/v2/models/{embedded.VLM.stem}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served.serving("--model", embedded.VLM) as running:
        yield running


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions(embedded.digits(1000), embedded.labels(1000), 6, seed=1)


def _png(picture: Any) -> str:
    return base64.b64encode(cv2.imencode(".png", picture)[1].tobytes()).decode()


def _generate(server: Server, path: str = "generate", **request: Any) -> Reply:
    return server.request("POST", f"{MODEL}/{path}", json.dumps(request).encode())


def _events(reply: Reply) -> list[dict[str, Any]]:
    lines = [line for line in reply.body.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_it_answers_as_the_library_does(server: Server, asked: list[Question]) -> None:
    model = AdaptiveDecoder.load(embedded.VLM, threads=1)
    for question in asked:
        reply = _generate(server, text_input=question.text, image=_png(question.picture), id="q")
        (own,) = model.answer([Asked(question.text, question.picture)])
        expected = {"model_name": embedded.VLM.stem, "model_version": "1", "id": "q"}
        assert reply.json == expected | {"text_output": own.text}


def test_a_stream_has_an_event_for_each_piece(server: Server, asked: list[Question]) -> None:
    request = {"text_input": "read the digits from left to right.", "image": _png(asked[0].picture)}
    whole = _generate(server, **request).json["text_output"]
    reply = _generate(server, "generate_stream", **request)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = _events(reply)
    assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
    assert len(events) > 2
    assert "".join(event["text_output"] for event in events) == whole


def test_limits_of_an_answer_hold(server: Server) -> None:
    text = "a" * 20  # nothing it knows, so it goes on
    long = _generate(server, text_input=text, parameters={"max_tokens": 6}).json["text_output"]
    short = _generate(server, text_input=text, max_tokens=2).json["text_output"]
    assert long.startswith(short)
    assert len(short) < len(long)
    cut = _generate(server, text_input=text, max_tokens=6, stop=[long[2:4]]).json["text_output"]
    assert cut == long[: long.index(long[2:4])]


def test_the_same_seed_samples_the_same(server: Server) -> None:
    hot = {"text_input": "a" * 20, "temperature": 5, "max_tokens": 12}
    first, again, other = (
        _generate(server, **hot, seed=seed).json["text_output"] for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        ({"text": "what?"}, 400, "text"),
        ({"text_input": "what?", "image": "AAAA"}, 400, "image"),
        ({"text_input": "what?", "max_tokens": -1}, 400, "max_tokens"),
        ({"text_input": "x " * 200}, 400, "context"),
        ({"text_input": "x" * 10**5}, 413, "characters"),
    ],
)
def test_bad_requests_get_one_line(
    server: Server, path: str, request_: Any, status: int, why: str
) -> None:
    reply = _generate(server, path, **request_)
    assert reply.status == status
    assert why in reply.json["error"]
    assert "\n" not in reply.json["error"]


def test_other_models_and_paths_are_not_there(server: Server) -> None:
    body = json.dumps({"text_input": "what?"}).encode()
    assert server.request("POST", "/v2/models/other/generate", body).status == 404
    assert server.request("POST", f"{MODEL}/versions/2/generate", body).status == 404
    assert server.request("POST", f"{MODEL}/versions/1/generate", body).status == 200
    assert server.request("POST", f"{MODEL}/infer", body).status == 404
    assert server.get("/v2")["extensions"] == ["generate", "adaptation"]
    assert [each["name"] for each in server.get(MODEL)["inputs"]] == ["text_input", "image"]


def test_a_client_that_goes_away_leaves_its_place(server: Server) -> None:
    body = json.dumps({"text_input": "a" * 20, "max_tokens": 60}).encode()
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", f"{MODEL}/generate_stream", body)
        connection.getresponse().read(10)
        connection.close()
    assert _generate(server, text_input="what?").status == 200
    assert server.get("/v2/health/ready")["ready"]


def _refused(server: Server) -> float:
    """How often `generate` has answered 400."""
    sample = r'^zotta_requests_total{code="400",endpoint="generate"} (\S+)$'
    found = re.search(sample, server.request("GET", "/metrics").body.decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_an_answer_that_nobody_waits_for_is_given_up(server: Server) -> None:
    body = json.dumps({"text_input": "a" * 20, "max_tokens": 90}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    answered, refused = server.get(f"{MODEL}/adaptation")["answered"], _refused(server)
    connection.request("POST", f"{MODEL}/generate", body)
    connection.close()
    served.until(lambda: _refused(server), lambda seen: seen > refused)
    assert server.get(f"{MODEL}/adaptation")["answered"] == answered


def test_the_dashboard_finds_what_a_classifier_tells(server: Server) -> None:
    classifier = create_app(AdaptiveModel.load(embedded.MODEL), "digits").state.service
    told = server.get(f"{MODEL}/adaptation")
    assert set(classifier.adaptation()) <= set(told)
    assert told["classes"] == 351
    server.get(f"{MODEL}/adaptation/history")
    assert b"<html" in server.request("GET", "/").body


def test_a_token_is_needed_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789")
    with served.serving("--model", embedded.VLM, "--token-file", tmp_path / "token") as running:
        assert _generate(running, text_input="what?").status == 401
        body, key = json.dumps({"text_input": "what?"}).encode(), "Bearer 0123456789"
        reply = running.request("POST", f"{MODEL}/generate", body, {"Authorization": key})
        assert reply.status == 200


@pytest.mark.parametrize("mode", ["inline", "background"])
def test_it_learns_and_keeps_what_it_learned(
    mode: str, tmp_path: Path, asked: list[Question]
) -> None:
    flags = ("--model", embedded.VLM, "--method", "zotta", "--adapt", mode, "--state", tmp_path)
    with served.serving(*flags) as running:
        for question in asked:
            drifted = np.clip(question.picture // 3 + 80, 0, 255).astype(np.uint8)
            request = {"text_input": question.text, "image": _png(drifted)}
            assert _generate(running, **request).status == 200
        look = lambda: running.get(f"{MODEL}/adaptation")  # noqa: E731
        learned = served.until(look, lambda seen: seen["steps"] > 0)
        assert learned["answered"] == len(asked)
        running.post(f"{MODEL}/adaptation/pause")
        steps = served.until(look, lambda seen: seen["paused"])["steps"]
        assert _generate(running, **request).status == 200
        assert look()["steps"] == steps
        assert running.stop() == 0
    with served.serving(*flags) as running:
        assert running.get(f"{MODEL}/adaptation")["steps"] >= steps
        assert running.post(f"{MODEL}/adaptation/reset")["distance"] == 0
