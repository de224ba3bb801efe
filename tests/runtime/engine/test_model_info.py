"""What a model file says about itself, and files in which that is not so."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import toy
from onnx import TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.engine.model_info import read_info


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return toy.build(tmp_path / "toy.onnx")


def test_read_info(model: Path) -> None:
    info = read_info(model)
    assert info.chosen == toy.CHOSEN
    assert [layer.name for layer in info.layers] == [f"blocks.{i}" for i in range(toy.BLOCKS)]


def test_read_info_needs_no_onnx(model: Path) -> None:
    code = (
        "import sys; from zotta_edge.runtime.engine.model_info import read_info; "
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
        read_info(toy.edited(model, edit))


def test_a_plain_onnx_file(model: Path) -> None:
    def forget(content: onnx.ModelProto) -> None:
        del content.metadata_props[:]

    with pytest.raises(ZottaError, match="zotta-edge export"):
        read_info(toy.edited(model, forget))
