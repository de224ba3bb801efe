"""Log lines for machines."""

import json
from typing import Any

import served
from served import INFER, Client


def test_json_logs(images: Any) -> None:
    with served.serving("--log", "json") as server:
        Client(server.port).infer(images[:1])
        server.stop()
        entries = [json.loads(line) for line in server.lines]
    (access,) = [entry for entry in entries if entry.get("path") == INFER]
    assert (access["method"], access["status"], access["level"]) == ("POST", 200, "info")
    assert access["seconds"] > 0
    assert all({"time", "level", "message"} <= set(entry) for entry in entries)
