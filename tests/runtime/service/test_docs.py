"""The service's examples, in the README and in its own page, are run as they stand."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
from served import Server

from zotta_edge.models import embedded

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "docs" / "service.md"]
PORT = "127.0.0.1:8080"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def curls() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("curl ")})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served.serving() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import cv2

    folder = tmp_path_factory.mktemp("curl")
    cv2.imwrite(str(folder / "digit.png"), served.digits()[0][0])
    return folder


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("command", curls())
def test_curl_examples(server: Server, folder: Path, command: str) -> None:
    assert PORT in command
    command = command.replace(PORT, f"127.0.0.1:{server.port}")
    words = ["curl", "--silent", "--show-error", "--fail-with-body", *command.split()[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    if "/metrics" in command:
        assert "zotta_build_info{" in done.stdout
        return
    answer = json.loads(done.stdout)
    if "classify" in command:
        shown = json.loads(blocks(PAGES[1], "json")[0])
        assert set(answer) == set(shown)
        assert answer["label"] == shown["label"]


def test_examples_were_found() -> None:
    assert len(curls()) >= 5


def test_triton_example(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(PAGES[1], "python")[0]
    exec(code.replace(PORT, f"127.0.0.1:{server.port}"), {})
    assert capsys.readouterr().out.count("b'") == 4


def test_embedding_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(embedded.MODEL, folder / "vit_int8.onnx")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(blocks(PAGES[1], "python")[1], names)
    asyncio.run(use_mounted(names["app"]))


async def use_mounted(app: Any) -> None:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://pi.local") as client,
    ):
        assert (await client.get("/vision/v2")).json()["models"] == ["vit"]
        body, headers = served.infer_body(served.digits()[0][:16])
        reply = await client.post("/vision/v2/models/vit/infer", content=body, headers=headers)
        assert reply.json()["outputs"][0]["shape"] == [16, 10]
        status = (await client.get("/vision/v2/models/vit/adaptation")).json()
        assert (status["mode"], status["answered"]) == ("background", 16)
        evil = {"Origin": "http://evil.example"}
        assert (await client.post("/vision/v2/models/vit/infer", headers=evil)).status_code == 403


def test_configuration_example(tmp_path: Path) -> None:
    from zotta_edge import Settings
    from zotta_edge.runtime.service.config import load

    (tmp_path / "serve.toml").write_text(blocks(PAGES[1], "toml")[0])
    config, settings = load({}, {}, tmp_path / "serve.toml")
    assert config.adapt == "background"
    assert Settings().replace(settings) != Settings()


def test_serve_commands_are_understood() -> None:
    from zotta_edge.__main__ import parser

    commands = [
        line.split("#")[0].rstrip(" &").split()[1:]
        for page in PAGES
        for kind in ("sh", "text")
        for block in blocks(page, kind)
        for line in block.splitlines()
        if line.startswith("zotta-edge serve")
    ]
    assert len(commands) >= 3
    for command in commands:
        parser().parse_args(command)


def test_options_in_the_page_have_their_real_defaults() -> None:
    from dataclasses import fields

    from zotta_edge.runtime.service.config import Config

    defaults = {f"--{item.name.replace('_', '-')}": item.default for item in fields(Config)}
    text = PAGES[1].read_text()
    told = re.findall(r"`(--[a-z-]+)`\s+\((\d+(?:\.\d+)?)", text)
    assert {name for name, _ in told} >= {"--max-wait", "--deadline", "--batch-size", "--max-body"}
    for name, value in told:
        assert float(value) == defaults[name], name


def test_keys_in_the_page_are_those_that_are_sent(server: Server) -> None:
    table = PAGES[1].read_text().split("| key | meaning |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert told == set(server.get(served.ADAPTATION))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_unit_is_valid() -> None:
    unit = ROOT / "deploy" / "zotta-edge.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "Unknown" not in done.stderr


def test_unit_runs_a_command_we_have() -> None:
    from zotta_edge.__main__ import parser

    unit = (ROOT / "deploy" / "zotta-edge.service").read_text()
    command = re.search(r"^ExecStart=\S+/zotta-edge (.*)$", unit, re.MULTILINE)
    assert command
    parser().parse_args(command[1].split())
