"""A served model adapts as `zotta-edge adapt` does, answers in time, and can be steered."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import served
from numpy.typing import NDArray
from served import ADAPTATION, Client, Server

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.io.sources import batches
from zotta_edge.runtime.job import adapt_stream
from zotta_edge.runtime.methods import METHODS
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.learning import batching as gather
from zotta_edge.runtime.service.service import Service

SLOW = ("--method", "zotta", "--set", "always=true", "--set", "pairs=200")  # seconds an update


@pytest.fixture(scope="module")
def stream() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    return served.digits()


def logits(reply: served.Reply) -> NDArray[np.float64]:
    output = reply.json["outputs"][0]
    assert output["name"] == "logits"
    return np.array(output["data"]).reshape(output["shape"])


def through_clients(server: Server, images: NDArray[np.uint8], clients: int) -> NDArray[np.intp]:
    """Each image in a request of its own, by clients that share the stream; their answers."""
    answers, indices, lock = np.full(len(images), -1), iter(range(len(images))), threading.Lock()

    def ask() -> None:
        client = Client(server.port)
        while True:
            with lock:
                index = next(indices, None)
            if index is None:
                return
            reply = client.infer(images[index : index + 1])
            assert reply.status == 200, reply.body
            answers[index] = int(reply.json["outputs"][2]["data"][0])

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_eight_clients_adapt_like_one_stream(stream: Any) -> None:
    images, labels = stream
    source = embedded.corrupted_stream()
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    tally = adapt_stream(model, batches(source, 16), labels=source.labels())
    expected = tally.accuracy(tally.adapted)
    assert expected is not None
    with served.serving("--deadline", "60") as server:
        answers = through_clients(server, images, clients=8)
        status = server.wait_until(lambda s: s["images"] + s["waiting"] == len(images))
        assert server.metric("zotta_images_total") == len(images)
        assert server.metric('zotta_requests_total{code="200",endpoint="infer"}') == len(images)
    assert (answers >= 0).all()
    assert status["answered"] == len(images)
    assert status["dropped"] == 0
    assert float((answers == labels).mean()) > expected - 0.01


def test_full_batches_adapt_bit_for_bit_as_the_library_does(stream: Any) -> None:
    images, _ = stream
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    with served.serving("--deadline", "60") as server:
        client = Client(server.port)
        for at in range(0, 160, 16):
            expected = model.predict(images[at : at + 16])
            reply = client.infer(images[at : at + 16])
            np.testing.assert_array_equal(logits(reply), expected.logits)
            parameters = reply.json["parameters"]
            assert parameters == {"adapted": expected.adapted, "drift": expected.drift}
        status, known = server.get(ADAPTATION), model.status()
        for key in ("steps", "images", "batches", "phase", "distance", "guard", "significance"):
            assert status[key] == known[key]
        assert status["steps"] > 0
        assert server.metric('zotta_adapt_steps_total{outcome="held"}') == known["steps"]
        assert server.metric("zotta_drift_score") == known["drift"]
        assert server.metric("zotta_affine_distance_ratio") == known["distance"]
        assert server.metric("zotta_adapt_duration_seconds_count") == 10
        moved = [layer["distance"] > 0 for layer in status["layers"]]
        assert moved == [layer["chosen"] for layer in status["layers"]]


def test_one_large_request_is_adapted_to_batch_by_batch(stream: Any) -> None:
    images, _ = stream
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    expected = [model.predict(images[at : at + 16]).logits for at in range(0, 96, 16)]
    rest = model.predict(images[96:100], adapt=False).logits
    with served.serving("--deadline", "60") as server:
        found = logits(Client(server.port).infer(images[:100]))
        np.testing.assert_array_equal(found, np.concatenate([*expected, rest]))
        assert server.get(ADAPTATION)["waiting"] == 4


def test_background_answers_first_and_learns_from_the_same_batches(stream: Any) -> None:
    images, _ = stream
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    with served.serving("--adapt", "background") as server:
        client = Client(server.port)
        for at in range(0, 96, 16):
            expected = model.predict(images[at : at + 16], adapt=False)
            reply = client.infer(images[at : at + 16])
            np.testing.assert_array_equal(logits(reply), expected.logits)
            assert not reply.json["parameters"]["adapted"]
            model.predict(images[at : at + 16])
            status = server.wait_until(lambda s, end=at + 16: s["images"] == end)
        assert status["steps"] == model.status()["steps"] > 0
        assert status["distance"] == model.status()["distance"]


def test_background_gives_up_the_oldest_when_it_cannot_keep_up(stream: Any) -> None:
    images, _ = stream
    with served.serving("--adapt", "background", *SLOW) as server:
        client = Client(server.port)
        for at in range(0, 160, 16):
            assert client.infer(images[at : at + 16]).status == 200
        status = server.get(ADAPTATION)
        assert status["answered"] == 160
        assert status["waiting"] == 64
        assert status["dropped"] == 160 - 64 - 16
        assert server.metric("zotta_adapt_dropped_images_total") == status["dropped"]


def test_no_answer_waits_longer_than_the_deadline(stream: Any) -> None:
    """The update goes on and counts; its batch, and those that come meanwhile, are answered."""
    images, _ = stream
    plain = AdaptiveModel.load(embedded.MODEL, method="none", threads=1)
    with served.serving(*SLOW, "--set", "pairs=400", "--deadline", "1") as server:
        client = Client(server.port)
        client.infer(images[:1], adapt=False)
        for at in (0, 16):
            started = time.perf_counter()
            reply = client.infer(images[at : at + 16])
            assert 0.01 < time.perf_counter() - started < 4
            assert not reply.json["parameters"]["adapted"]
            expected = plain.predict(images[at : at + 16], adapt=False)
            np.testing.assert_array_equal(logits(reply), expected.logits)
        assert server.get(ADAPTATION)["steps"] == 0
        server.wait_until(lambda status: status["steps"] == 2, seconds=60)
        client = Client(server.port)  # the old connection may have been idle for too long
        started = time.perf_counter()
        client.infer(images[32:48])
        assert time.perf_counter() - started < 0.9, "it is known not to be worth waiting"


def test_adaptation_that_fails_costs_no_answer(
    stream: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = prepare(stream[0][:4], read_info(embedded.MODEL).preprocessing)
    model = AdaptiveModel.load(embedded.MODEL, threads=1)

    def fail(images: Any) -> Any:
        raise MemoryError("no room for perturbations")

    monkeypatch.setattr(model._method, "predict", fail)

    async def ask() -> Any:
        service = Service(model, "digits", Config(batch_size=4))
        result = await service.predict(batch, adapt=True)
        await service.close()
        return result

    result = asyncio.run(ask())
    np.testing.assert_array_equal(result.logits, model.predict(batch, adapt=False).logits)
    assert "no room for perturbations" in caplog.text


def test_what_does_not_fit_into_memory_costs_no_other_answer(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = prepare(stream[0][:4], read_info(embedded.MODEL).preprocessing)
    model = AdaptiveModel.load(embedded.MODEL, threads=1)

    def fail(*args: Any) -> Any:
        raise MemoryError

    async def ask() -> tuple[Any, int]:
        service = Service(model, "digits", Config(adapt="background"))
        with monkeypatch.context() as patch:
            patch.setattr(gather, "np", SimpleNamespace(concatenate=fail))
            with pytest.raises(MemoryError):
                await asyncio.wait_for(service.predict(batch, adapt=True), 10)
        monkeypatch.setattr(service.gatherer.lessons, "add", fail)
        for _ in range(2):
            await asyncio.wait_for(service.predict(batch, adapt=True), 10)
        await asyncio.sleep(0.01)
        loop, lost = service.gatherer._loop, service.monitor.lost
        await service.close()
        return loop, lost

    loop, lost = asyncio.run(ask())
    assert loop.cancelled(), "it went on until the end"
    assert lost == 8


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> tuple[AdaptiveModel, threading.Event]:
    """A model whose updates wait for the event."""
    model, go = AdaptiveModel.load(embedded.MODEL, threads=1), threading.Event()
    predict = model._method.predict
    monkeypatch.setattr(model._method, "predict", lambda images: go.wait(20) and predict(images))
    return model, go


def test_a_resume_may_follow_a_pause_that_still_waits(stream: Any, held_up: Any) -> None:
    model, go = held_up
    batch = prepare(stream[0][:4], read_info(embedded.MODEL).preprocessing)

    async def use() -> None:
        service = Service(model, "digits", Config(batch_size=4, deadline=0.01))
        await service.predict(batch, adapt=True)
        pause = asyncio.create_task(service.pause())
        resume = asyncio.create_task(service.resume())
        await asyncio.sleep(0.05)
        go.set()
        await asyncio.gather(pause, resume)
        assert not service.adaptation()["paused"]
        assert not model.status()["frozen"]
        service.drain()
        await service.resume()
        assert not service.gatherer.learning, "it has no more time for that"
        await service.close()

    asyncio.run(use())


def test_images_of_before_a_reset_are_not_learned_from_after_it(stream: Any, held_up: Any) -> None:
    """Neither what a lesson under way leaves over nor what waits for its batch to fill."""
    model, go = held_up
    batch = prepare(stream[0][:6], read_info(embedded.MODEL).preprocessing)

    async def use() -> None:
        service = Service(model, "digits", Config(batch_size=4, deadline=0.01, max_wait=60))
        await service.predict(batch, adapt=True)
        held = asyncio.create_task(service.predict(batch[:2], adapt=True))
        await asyncio.sleep(0.05)
        reset = asyncio.create_task(service.reset())
        await asyncio.wait_for(held, 10)
        go.set()
        await reset
        await asyncio.sleep(0.05)
        assert service.adaptation()["waiting"] == 0
        assert model.status()["images"] == 4
        await service.close()

    asyncio.run(use())


def test_outcomes_are_counted_by_batch(stream: Any) -> None:
    """Episodic adaptation starts its steps anew each time."""
    batch = prepare(stream[0][:8], read_info(embedded.MODEL).preprocessing)
    settings = Settings(always=True, pairs=1, episodic=True)
    model = AdaptiveModel.load(embedded.MODEL, settings, "zotta", threads=1)

    async def use() -> str:
        service = Service(model, "digits", Config(batch_size=4, deadline=60))
        await service.predict(batch, adapt=True)
        await service.predict(batch, adapt=True)
        text = service.metrics.text().decode()
        await service.close()
        return text

    counts = dict(re.findall(r'zotta_adapt_steps_total{outcome="(\w+)"} (\S+)', asyncio.run(use())))
    assert float(counts["skipped"]) == 0
    assert float(counts["held"]) + float(counts["rolled_back"]) == 4


@pytest.fixture(scope="module")
def adapted(stream: Any) -> Iterator[Server]:
    """A service that has learned something."""
    with served.serving("--deadline", "60") as server:
        client = Client(server.port)
        for at in range(0, 96, 16):
            client.infer(stream[0][at : at + 16])
        yield server


def test_picture_of_the_adaptation(adapted: Server) -> None:
    status = adapted.get(ADAPTATION)
    assert (status["name"], status["mode"], status["precision"]) == (served.NAME, "inline", "int8")
    assert status["phase"] in ("watching", "adapting", "settled")
    assert status["classes"] == 10
    assert 0 < status["entropy"] < np.log(10)
    assert 0 < status["latency"]["p50"] <= status["latency"]["p99"]
    assert sum(entry["count"] for entry in status["recent"]) == min(status["answered"], 256)
    assert any("adapting" in event["event"] for event in status["events"])
    assert all(event["reason"] for event in status["events"])
    points = adapted.get(f"{ADAPTATION}/history")["points"]
    assert len(points) >= 6
    assert points[-1]["steps"] == status["steps"] or points[-1]["steps"] == points[-2]["steps"] + 1
    assert set(points[0]) == {"time", "drift", "entropy", "steps", "latency", "images"}


def test_pause_and_resume(adapted: Server, stream: Any) -> None:
    batch = stream[0][96:112]
    before = adapted.post(f"{ADAPTATION}/pause")
    assert before["paused"]
    client = Client(adapted.port)
    first, second = (logits(client.infer(batch)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    paused = adapted.get(ADAPTATION)
    assert (paused["images"], paused["waiting"]) == (before["images"], 0)
    assert not adapted.post(f"{ADAPTATION}/resume")["paused"]
    client.infer(batch)
    assert adapted.get(ADAPTATION)["images"] == before["images"] + 16


def test_snapshot_reset_and_restore(adapted: Server, stream: Any) -> None:
    batch = stream[0][112:128]
    client = Client(adapted.port)
    before = adapted.get(ADAPTATION)
    assert before["distance"] > 0
    answers = logits(client.infer(batch, adapt=False))
    taken = adapted.post(f"{ADAPTATION}/snapshots")
    assert taken["steps"] == before["steps"]
    assert adapted.get(f"{ADAPTATION}/snapshots")["snapshots"][0] == taken

    reset = adapted.post(f"{ADAPTATION}/reset")
    assert (reset["steps"], reset["distance"]) == (0, 0)
    assert reset["resets"] == before["resets"] + 1
    assert reset["last_reset"]["reason"] == "request"
    assert adapted.metric('zotta_resets_total{reason="request"}') >= 1
    assert (logits(client.infer(batch, adapt=False)) != answers).any()

    restored = adapted.post(f"{ADAPTATION}/snapshots/{taken['id']}/restore")
    for key in ("steps", "distance", "drift", "layers"):
        assert restored[key] == before[key]
    np.testing.assert_array_equal(logits(client.infer(batch, adapt=False)), answers)


def test_snapshots_are_bounded_and_named_by_us(adapted: Server) -> None:
    for _ in range(22):
        adapted.post(f"{ADAPTATION}/snapshots")
    found = adapted.get(f"{ADAPTATION}/snapshots")["snapshots"]
    assert len(found) == 20
    assert [one["id"] for one in found] == sorted((one["id"] for one in found), reverse=True)
    for name in ("..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "x", "20261116T063534561Z-0.state", "%00"):
        reply = adapted.request("POST", f"{ADAPTATION}/snapshots/{name}/restore")
        assert reply.status == 404, name


def test_off_is_plain_inference(stream: Any) -> None:
    plain = AdaptiveModel.load(embedded.MODEL, method="none", threads=1)
    with served.serving("--adapt", "off") as server:
        reply = Client(server.port).infer(stream[0][:32])
        expected = [plain.predict(stream[0][at : at + 16]).logits for at in (0, 16)]
        np.testing.assert_array_equal(logits(reply), np.concatenate(expected))
        assert reply.json["parameters"] == {"adapted": False}
        status = server.get(ADAPTATION)
        assert (status["mode"], status["method"], status["steps"]) == ("off", "none", 0)
        assert server.post(f"{ADAPTATION}/reset")["steps"] == 0
        assert server.post(f"{ADAPTATION}/resume")["mode"] == "off"


@pytest.mark.parametrize("method", ["primed", "zotta", "zoa", "foa"])
def test_readers_never_see_half_an_update(stream: Any, tmp_path: Path, method: str) -> None:
    """While a writer alternates between two states, every answer is one of the two's."""
    batch = stream[0][:8]
    model = AdaptiveModel.load(embedded.MODEL, Settings(always=True, pairs=1), method, threads=1)
    answers = []
    for name in ("a", "b"):
        for at in range(0, 32, 16):
            model.predict(stream[0][at : at + 16])
        model.save_state(tmp_path / name)
        answers.append(model.predict(batch, adapt=False).logits)
    assert (answers[0] != answers[1]).any()
    stop, seen, torn = threading.Event(), [0, 0], []

    def read() -> None:
        while not stop.is_set():
            found = model.predict(batch, adapt=False).logits
            same = [bool((found == answer).all()) for answer in answers]
            torn.extend([found] if not any(same) else [])
            seen[same.index(True) if any(same) else 0] += 1

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    end = time.monotonic() + 1.5
    while time.monotonic() < end or (min(seen) <= 10 and time.monotonic() < end + 20):
        for name in ("a", "b"):
            model.load_state(tmp_path / name)
            time.sleep(0.002)
    stop.set()
    for reader in readers:
        reader.join()
    assert not torn
    assert min(seen) > 10


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_served(stream: Any, method: str, tmp_path: Path) -> None:
    """Predict, look, snapshot, reset, restore; what is told is JSON."""
    batch = prepare(stream[0][:16], read_info(embedded.MODEL).preprocessing)
    try:
        model = AdaptiveModel.load(embedded.MODEL, Settings(pairs=1), method, threads=1)
    except ZottaError as error:
        if method != "bn_adapt":
            raise
        pytest.skip(str(error))  # not for this kind of network

    async def use() -> None:
        service = Service(model, "digits", Config(state=tmp_path, deadline=60))
        for _ in range(2):
            await service.predict(batch, adapt=True)
        taken = await service.snapshot()
        before = service.adaptation()
        json.dumps(before, allow_nan=False)
        await service.reset()
        await service.restore(taken.id)
        after = service.adaptation()
        for key in ("steps", "distance", "drift", "layers", "images"):
            assert after[key] == before[key], key
        await service.close()

    asyncio.run(use())
    assert (tmp_path / "digits.state").exists() == (method != "none")
