"""Sessions: what is refused, and with which words."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import toy

from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE
from zotta_edge.providers import available_providers
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.sessions import open_session, physical_cores


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return toy.build(tmp_path / "toy.onnx")


def test_opens_files_and_bytes_alike(model: Path) -> None:
    images = toy.images(3)
    from_file, from_bytes, unoptimized = (
        session.run(["logits"], {IMAGE: images})[0]
        for session in (
            open_session(model, threads=1),
            open_session(model.read_bytes()),
            open_session(model, optimize=False),
        )
    )
    np.testing.assert_array_equal(from_file, from_bytes)
    np.testing.assert_allclose(from_file, unoptimized, atol=1e-5)


def test_opening_is_silent(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_session(model)  # ONNX Runtime would warn about every overridable tensor
    assert capfd.readouterr() == ("", "")


def test_physical_cores() -> None:
    assert 0 <= physical_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("threads", [0, -2, 100_000])  # the last never came back
def test_threads_are_a_number_that_a_machine_can_have(model: Path, threads: int) -> None:
    with pytest.raises(ZottaError, match=f"threads must be from 1 to 1024, not {threads}"):
        open_session(model, threads=threads)


@pytest.mark.parametrize("provider", ["cuda", "nonsense"])
def test_an_unavailable_provider_lists_the_available(model: Path, provider: str) -> None:
    if provider in available_providers():
        pytest.skip(f"{provider} is available here")
    with pytest.raises(ZottaError, match=rf"provider {provider} is not available.* has .*cpu"):
        open_session(model, provider=provider)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_does_not_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime falls back to the CPU without a word; nobody would know."""
    if "cuda" in available_providers():
        pytest.skip("cuda is available here")
    known = [*ort.get_available_providers(), "CUDAExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: known)
    with pytest.raises(ZottaError, match="provider cuda is installed but does not start"):
        open_session(model, provider="cuda")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello world\n", "is not an ONNX model, or is damaged"),
        (b"\x08\x08", "is not an ONNX model, or is damaged"),
    ],
)
def test_not_a_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ZottaError, match=f"model.onnx {message}: copy or export it again"):
        read_info(path)


def test_a_truncated_model(model: Path) -> None:
    content = model.read_bytes()
    model.write_bytes(content[: len(content) // 2])
    with pytest.raises(ZottaError, match="is damaged"):
        read_info(model)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ZottaError, match="none.onnx does not exist"):
        read_info(tmp_path / "none.onnx")
    with pytest.raises(ZottaError, match="is not a file"):
        read_info(tmp_path)


def test_a_model_from_the_future(model: Path) -> None:
    def raise_opset(content: onnx.ModelProto) -> None:
        content.opset_import[0].version = 99

    def raise_ir(content: onnx.ModelProto) -> None:
        content.ir_version = 99

    for edit in (raise_opset, raise_ir):
        with pytest.raises(ZottaError, match=f"newer onnxruntime than {ort.__version__}"):
            read_info(toy.edited(model, edit))


def test_an_error_is_one_line(model: Path) -> None:
    def break_shapes(content: onnx.ModelProto) -> None:
        head = next(w for w in content.graph.initializer if w.name == "head")
        head.dims[:] = [toy.CLASSES, toy.WIDTH]

    with pytest.raises(ZottaError, match="cannot be run by onnxruntime") as caught:
        read_info(toy.edited(model, break_shapes))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_external_data_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file and from bytes, even where ONNX Runtime would find the data."""
    outside = tmp_path / "outside.onnx"
    onnx.save(
        onnx.load(model),
        outside,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=1000,
    )
    monkeypatch.chdir(tmp_path)
    ort.InferenceSession(outside.read_bytes(), providers=["CPUExecutionProvider"])
    for source in (outside, outside.read_bytes()):
        with pytest.raises(ZottaError, match="keeps its weights in other files"):
            open_session(source)
