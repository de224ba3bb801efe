"""Options: flags, environment and file, and what is wrong with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import served
from served import ADAPTATION

from zotta_edge.runtime.service.config import load


def test_flags_win_over_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.toml").write_text(
        'adapt = "off"\nmax_wait = 1\nbatch_size = 7\nmax_requests = 3\n[settings]\npairs = 2\n'
    )

    environment = {"ZOTTA_BATCH_SIZE": "8", "ZOTTA_MAX_REQUESTS": "9", "ZOTTA_STATE": ""}
    config, settings = load({"max_requests": 5, "host": None}, environment, tmp_path / "serve.toml")
    assert (config.adapt, config.max_wait, config.batch_size) == ("off", 1.0, 8)
    assert (config.max_requests, config.state, config.host) == (5, None, "127.0.0.1")
    assert settings == {"pairs": 2}
    for variable in [name for name in os.environ if name.startswith("ZOTTA_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("ZOTTA_CONFIG", str(tmp_path / "serve.toml"))
    monkeypatch.setenv("ZOTTA_ADAPT", "background")
    with served.serving("--set", "seed=3") as server:
        status = server.get(ADAPTATION)
        assert (status["mode"], status["settings"]["pairs"]) == ("background", 2)
        assert status["settings"]["seed"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch-size = 3", "no option is called batch-size: did you mean batch_size?"),
        ("batch_size = 'x'", "expected a whole number"),
        ("batch_size = 1.5", "expected a whole number"),
        ("batch_size = true", "expected a whole number"),
        ("batch_size = 0", "batch_size is 0: expected a number at least 1"),
        ("adapt = 'sometimes'", "expected one of inline, background, off"),
        ("settings = 3", "must be a table"),
        ("[settings]\npears = 2", "did you mean pairs"),
        ("not toml", "not valid TOML"),
        ("port = 99999", "port is 99999: expected a number from 0 to 65535"),  # 34463 was taken
        ("host = 'a..b'\ntoken_file = 'token'", "cannot listen on a..b"),
    ],
)
def test_bad_configuration_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "serve.toml").write_text(text)
    (tmp_path / "token").write_text("0123456789")
    command = [sys.executable, "-m", "zotta_edge", "serve"]
    done = subprocess.run(
        [*command, "--config", str(tmp_path / "serve.toml")],
        capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
