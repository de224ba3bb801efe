"""A served model adapts as `zotta-edge adapt` does, answers in time, and can be steered."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
import served
from numpy.typing import NDArray
from served import ADAPTATION, Client, Server

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.io.sources import batches
from zotta_edge.runtime.job import adapt_stream
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.learning.learning_queue import LearningQueue
from zotta_edge.runtime.service.service import Service

SLOW = ("--method", "zotta", "--set", "always=true", "--set", "pairs=400")  # seconds an update


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


@pytest.mark.slow
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
            np.testing.assert_array_equal(served.logits(reply), expected.logits)
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
        answers = served.logits(Client(server.port).infer(images[:100]))
        np.testing.assert_array_equal(answers, np.concatenate([*expected, rest]))
        assert server.get(ADAPTATION)["waiting"] == 4


def test_background_answers_first_and_learns_from_the_same_batches(stream: Any) -> None:
    images, _ = stream
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    with served.serving("--adapt", "background") as server:
        client = Client(server.port)
        for at in range(0, 96, 16):
            expected = model.predict(images[at : at + 16], adapt=False)
            reply = client.infer(images[at : at + 16])
            np.testing.assert_array_equal(served.logits(reply), expected.logits)
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


@pytest.mark.slow
def test_no_answer_waits_longer_than_the_deadline(stream: Any) -> None:
    """The update goes on and counts; its batch, and those that come meanwhile, are answered."""
    images, _ = stream
    deadline = 3.0  # far beyond what a plain answer takes, far below an update
    plain = AdaptiveModel.load(embedded.MODEL, method="none", threads=1)
    with served.serving(*SLOW, "--set", "pairs=4000", "--deadline", str(deadline)) as server:
        client = Client(server.port)
        client.infer(images[:1], adapt=False)
        for at in (0, 16):
            reply = client.infer(images[at : at + 16])
            assert not reply.json["parameters"]["adapted"]
            expected = plain.predict(images[at : at + 16], adapt=False)
            np.testing.assert_array_equal(served.logits(reply), expected.logits)
        assert server.get(ADAPTATION)["steps"] == 0, "both were answered before the update"
        server.wait_until(lambda status: status["steps"] == 2, seconds=500)
        client = Client(server.port)  # the old connection may have been idle for too long
        started = time.perf_counter()
        client.infer(images[32:48])
        assert time.perf_counter() - started < deadline, "it is known not to be worth waiting"


class FailingModel(AdaptiveModel):
    """Runs out of memory when it adapts, or the first time it answers."""

    fails_to_adapt, fails_to_answer = False, False

    def predict_prepared(self, batch: Any, adapt: bool = True) -> Result:
        if adapt and self.fails_to_adapt:
            raise MemoryError("no room for perturbations")
        if self.fails_to_answer:
            self.fails_to_answer = False
            raise MemoryError("no room for an answer")
        return super().predict_prepared(batch, adapt)


class WaitingModel(AdaptiveModel):
    """Adapts only after `go` is set."""

    go: threading.Event

    def predict_prepared(self, batch: Any, adapt: bool = True) -> Result:
        if adapt:
            assert self.go.wait(60)
        return super().predict_prepared(batch, adapt)


def load(kind: type[AdaptiveModel]) -> Any:
    return kind.load(embedded.MODEL, threads=1)


def prepared(images: Any) -> Any:
    return prepare(images, read_info(embedded.MODEL).preprocessing)


def test_adaptation_that_fails_costs_no_answer(
    images: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model, batch = load(FailingModel), prepared(images[:4])
    model.fails_to_adapt = True

    async def ask() -> Any:
        service = Service(model, "digits", Config(batch_size=4))
        result = await service.predict(batch, adapt=True)
        await service.close()
        return result

    result = asyncio.run(ask())
    np.testing.assert_array_equal(result.logits, model.predict(batch, adapt=False).logits)
    assert "no room for perturbations" in caplog.text


def test_what_does_not_fit_into_memory_costs_no_other_answer(
    images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = load(FailingModel), prepared(images[:4])

    def full(queue: LearningQueue, images: Any) -> int:
        raise MemoryError

    async def ask() -> int:
        service = Service(model, "digits", Config(adapt="background"))
        model.fails_to_answer = True
        with pytest.raises(MemoryError):
            await service.predict(batch, adapt=True)
        monkeypatch.setattr(LearningQueue, "add", full)
        for _ in range(3):  # the third shows that the second's images were dropped in peace
            await service.predict(batch, adapt=True)
        dropped: int = service.adaptation()["dropped"]
        await service.close()
        return dropped

    assert asyncio.run(ask()) >= 8


@pytest.fixture
def held_up() -> tuple[AdaptiveModel, threading.Event]:
    """A model whose updates wait for the event."""
    model = load(WaitingModel)
    model.go = threading.Event()
    return model, model.go


def test_a_resume_may_follow_a_pause_that_still_waits(images: Any, held_up: Any) -> None:
    model, go = held_up
    batch = prepared(images[:4])

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
        assert not service.batcher.learning, "it has no more time for that"
        await service.close()

    asyncio.run(use())


def test_images_of_before_a_reset_are_not_learned_from_after_it(images: Any, held_up: Any) -> None:
    """Neither what a lesson under way leaves over nor what waits for its batch to fill."""
    model, go = held_up
    batch = prepared(images[:6])

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


def test_off_is_plain_inference(stream: Any) -> None:
    plain = AdaptiveModel.load(embedded.MODEL, method="none", threads=1)
    with served.serving("--adapt", "off") as server:
        reply = Client(server.port).infer(stream[0][:32])
        expected = [plain.predict(stream[0][at : at + 16]).logits for at in (0, 16)]
        np.testing.assert_array_equal(served.logits(reply), np.concatenate(expected))
        assert reply.json["parameters"] == {"adapted": False}
        status = server.get(ADAPTATION)
        assert (status["mode"], status["method"], status["steps"]) == ("off", "none", 0)
        assert server.post(f"{ADAPTATION}/reset")["steps"] == 0
        assert server.post(f"{ADAPTATION}/resume")["mode"] == "off"
