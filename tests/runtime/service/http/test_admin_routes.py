"""Pause, resume, reset, snapshots and restore."""

from typing import Any

import numpy as np
import served
from served import ADAPTATION, Client, Server


def test_pause_and_resume(adapted: Server, stream: Any) -> None:
    batch = stream[0][96:112]
    before = adapted.post(f"{ADAPTATION}/pause")
    assert before["paused"]
    client = Client(adapted.port)
    first, second = (served.logits(client.infer(batch)) for _ in range(2))
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
    answers = served.logits(client.infer(batch, adapt=False))
    taken = adapted.post(f"{ADAPTATION}/snapshots")
    assert taken["steps"] == before["steps"]
    assert adapted.get(f"{ADAPTATION}/snapshots")["snapshots"][0] == taken

    reset = adapted.post(f"{ADAPTATION}/reset")
    assert (reset["steps"], reset["distance"]) == (0, 0)
    assert reset["resets"] == before["resets"] + 1
    assert reset["last_reset"]["reason"] == "request"
    assert adapted.metric('zotta_resets_total{reason="request"}') >= 1
    assert (served.logits(client.infer(batch, adapt=False)) != answers).any()

    restored = adapted.post(f"{ADAPTATION}/snapshots/{taken['id']}/restore")
    for key in ("steps", "distance", "drift", "layers"):
        assert restored[key] == before[key]
    np.testing.assert_array_equal(served.logits(client.infer(batch, adapt=False)), answers)


def test_snapshots_are_bounded_and_named_by_us(adapted: Server) -> None:
    for _ in range(22):
        adapted.post(f"{ADAPTATION}/snapshots")
    found = adapted.get(f"{ADAPTATION}/snapshots")["snapshots"]
    assert len(found) == 20
    assert [one["id"] for one in found] == sorted((one["id"] for one in found), reverse=True)
    for name in ("..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "x", "20261116T063534561Z-0.state", "%00"):
        reply = adapted.request("POST", f"{ADAPTATION}/snapshots/{name}/restore")
        assert reply.status == 404, name
