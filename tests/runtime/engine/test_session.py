"""Sessions and the description of a model file: what is refused, and with which words."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import toy
from onnx import TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE
from zotta_edge.runtime.engine import session as sessions
from zotta_edge.runtime.engine.session import open_session, physical_cores, read_info


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return toy.build(tmp_path / "toy.onnx")


def _edited(path: Path, edit: object) -> Path:
    content = onnx.load(path)
    edit(content)  # type: ignore[operator]
    edited = path.with_name("edited.onnx")
    onnx.save(content, edited)
    return edited


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


@pytest.mark.parametrize("threads", [0, -2])
def test_threads_are_positive(model: Path, threads: int) -> None:
    with pytest.raises(ZottaError, match=f"threads must be at least 1, not {threads}"):
        open_session(model, threads=threads)


@pytest.mark.parametrize("provider", ["cuda", "nonsense"])
def test_an_unavailable_provider_lists_the_available(model: Path, provider: str) -> None:
    if provider in sessions.available_providers():
        pytest.skip(f"{provider} is available here")
    with pytest.raises(ZottaError, match=rf"provider {provider} is not available.* has .*cpu"):
        open_session(model, provider=provider)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_does_not_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime falls back to the CPU without a word; nobody would know."""
    if "cuda" in sessions.available_providers():
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
            read_info(_edited(model, edit))


def test_an_error_is_one_line(model: Path) -> None:
    def break_shapes(content: onnx.ModelProto) -> None:
        head = next(w for w in content.graph.initializer if w.name == "head")
        head.dims[:] = [toy.CLASSES, toy.WIDTH]

    with pytest.raises(ZottaError, match="cannot be run by onnxruntime") as caught:
        read_info(_edited(model, break_shapes))
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


def test_read_info(model: Path) -> None:
    info = read_info(model)
    assert info.chosen == toy.CHOSEN
    assert [layer.name for layer in info.layers] == [f"blocks.{i}" for i in range(toy.BLOCKS)]


def test_read_info_needs_no_onnx(model: Path) -> None:
    code = (
        "import sys; from zotta_edge.runtime.engine.session import read_info; "
        "read_info(sys.argv[1]); "
        "print(sorted({'onnx', 'torch', 'cv2', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def _drop_affine(content: onnx.ModelProto) -> None:
    """As a tool leaves the file that takes overridable inputs for plain weights."""
    index = [tensor.name for tensor in content.graph.input].index("blocks.1.norm.scale")
    del content.graph.input[index]


def _narrow_affine(content: onnx.ModelProto) -> None:
    tensor = next(t for t in content.graph.input if t.name == "blocks.1.norm.shift")
    tensor.type.tensor_type.shape.dim[0].dim_value = 1


def _drop_feature(content: onnx.ModelProto) -> None:
    index = [tensor.name for tensor in content.graph.output].index("feature.2")
    del content.graph.output[index]


def _fix_batch(content: onnx.ModelProto) -> None:
    content.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def _rename_image(content: onnx.ModelProto) -> None:
    content.graph.input[0].name = content.graph.node[0].input[0] = "pixels"


def _swap_logits(content: onnx.ModelProto) -> None:
    """logits of another number of classes than the description's."""
    content.graph.node[-1].op_type = "Identity"
    content.graph.node[-1].input[:] = ["embedding"]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", toy.WIDTH])
    content.graph.output[0].CopyFrom(logits)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_drop_affine, r"no overridable input blocks\.1\.norm\.scale"),
        (_narrow_affine, r"input blocks\.1\.norm\.shift is \[1, 1, 16\], not \[any, 1, 16\]"),
        (_drop_feature, r"no output feature\.2"),
        (_fix_batch, r"input image is \[1, 1, 8, 8\], not \[any, 1, 8, 8\]"),
        (_rename_image, "no input image"),
        (_swap_logits, r"output logits is \[batch, 16\], not \[any, 5\]"),
    ],
)
def test_a_graph_that_is_not_what_the_file_says(model: Path, edit: object, message: str) -> None:
    with pytest.raises(ZottaError, match=f"{message}: export it again"):
        read_info(_edited(model, edit))


def test_a_plain_onnx_file(model: Path) -> None:
    def forget(content: onnx.ModelProto) -> None:
        del content.metadata_props[:]

    with pytest.raises(ZottaError, match="zotta-edge export"):
        read_info(_edited(model, forget))
