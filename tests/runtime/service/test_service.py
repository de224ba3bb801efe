"""Every method can be served, and readers see whole updates only."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from zotta_edge import AdaptiveModel, Settings, ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.methods.registry import METHODS
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.service import Service


@pytest.mark.slow
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


def test_there_is_a_thread_for_what_does_not_take_long() -> None:
    service = Service(AdaptiveModel.load(embedded.MODEL, threads=1), "digits", Config())
    begun, over = [], threading.Event()

    def long() -> None:
        begun.append(1)
        over.wait(60)

    async def all_at_once() -> None:
        waiting = [asyncio.create_task(service.in_thread(long, long=True)) for _ in range(2)]
        await asyncio.sleep(0)
        await service.in_thread(lambda: None)
        assert len(begun) < 2
        over.set()
        await asyncio.gather(*waiting)
        await service.close()

    asyncio.run(all_at_once())
    assert len(begun) == 2


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_served(
    stream: Any, method: str, tmp_path: Path, token_statistics: Path
) -> None:
    """Predict, look, snapshot, reset, restore; what is told is JSON."""
    batch = prepare(stream[0][:16], read_info(embedded.MODEL).preprocessing)
    try:
        settings = Settings(pairs=1, pea_statistics=str(token_statistics))
        model = AdaptiveModel.load(embedded.MODEL, settings, method, threads=1)
    except ZottaError as error:
        if "has no BatchNorm" not in str(error) and "channel moments" not in str(error):
            raise
        pytest.skip(str(error))  # not for this kind of network, or not measured for it

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
