"""What the service tells about adaptation."""

import asyncio
import re
from typing import Any

import numpy as np
import served
from served import ADAPTATION, Server

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.service.config import Config
from zotta_edge.runtime.service.service import Service


def test_picture_of_the_adaptation(adapted: Server) -> None:
    status = adapted.get(ADAPTATION)
    assert (status["name"], status["mode"], status["precision"]) == (served.NAME, "inline", "int8")
    assert status["phase"] in ("watching", "adapting", "settled")
    assert status["classes"] == 10
    assert 0 < status["entropy"] < np.log(10)
    assert 0 < status["latency"]["p50"] <= status["latency"]["p99"]
    assert sum(entry["count"] for entry in status["recent"]) == min(status["answered"], 256)
    points = adapted.get(f"{ADAPTATION}/history")["points"]
    assert len(points) >= 6
    assert points[-1]["steps"] == status["steps"] or points[-1]["steps"] == points[-2]["steps"] + 1
    assert set(points[0]) == {"time", "drift", "entropy", "steps", "latency", "images"}


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
