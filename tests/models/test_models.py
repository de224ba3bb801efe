"""The torch definitions against published checkpoints, and the reading of checkpoints."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from zotta_edge.errors import ZottaError
from zotta_edge.models import embedded
from zotta_edge.models.checkpoint import load_weights, read_checkpoint
from zotta_edge.models.registry import ARCHITECTURES, architecture
from zotta_edge.models.train_digits import Digits, Recipe, accuracy, as_input, digits, train
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import prepare


def _loaded(name: str, path: Path) -> nn.Module:
    module = architecture(name).build(architecture(name).classes)
    load_weights(module, read_checkpoint(path), path)
    return module.eval()


def _logits(module: nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(images)).numpy()


def _onnx_logits(path: Path, images: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # it warns of every initializer that can be overridden
    session = ort.InferenceSession(path, options)
    return session.run(None, {session.get_inputs()[0].name: images})[0]


@pytest.mark.parametrize(
    ("name", "checkpoint", "reference", "side"),
    [
        (
            "deit_tiny_patch16_224",
            "deit-tiny/deit_tiny_patch16_224.pth",
            "deit-tiny/deit_tiny_fp32.onnx",
            224,
        ),
        (
            "cifar10_resnet26_gn",
            "cifar10-rn26-gn/cifar10_rn26_gn.pth",
            "cifar10-rn26-gn/cifar10_rn26_gn.onnx",
            32,
        ),
    ],
)
def test_published_weights_give_the_published_logits(
    shared_data: Path, name: str, checkpoint: str, reference: str, side: int
) -> None:
    images = np.random.default_rng(0).standard_normal((3, 3, side, side), dtype=np.float32)
    ours = _logits(_loaded(name, shared_data / checkpoint), images)
    np.testing.assert_allclose(ours, _onnx_logits(shared_data / reference, images), atol=1e-4)


def test_cifar_resnet_is_as_accurate_as_it_should_be(published_data: Path) -> None:
    model = _loaded("cifar10_resnet26_gn", published_data / "cifar10-rn26-gn/cifar10_rn26_gn.pth")
    with np.load(published_data / "cifar10_test_5000.npz") as data:
        images, labels = data["images"][:1000], data["labels"][:1000]
    prepared = ((images / 255 - 0.5) / 0.5).astype(np.float32).transpose(0, 3, 1, 2)
    assert (_logits(model, prepared).argmax(1) == labels).mean() > 0.89


@pytest.mark.parametrize(
    ("name", "parameters"),
    # millions, as published for these architectures with 1,000 classes
    [
        ("vit_tiny_patch16_224", 5.717),
        ("vit_small_patch16_224", 22.051),
        ("vit_base_patch16_224", 86.568),
        ("vit_large_patch16_224", 304.327),
        ("deit_small_patch16_224", 22.051),
        ("deit_base_patch16_224", 86.568),
        ("resnet50_gn", 25.557),
    ],
)
def test_sizes_are_the_published_ones(name: str, parameters: float) -> None:
    with torch.device("meta"):
        module = architecture(name).build(1000)
    count = sum(parameter.numel() for parameter in module.parameters())
    assert round(count / 1e6, 3) == parameters


def test_resnet50_gn_has_the_names_of_its_checkpoints() -> None:
    with torch.device("meta"):
        state = architecture("resnet50_gn").build(1000).state_dict()
    expected = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.weight": (64,),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.bn3.bias": (256,),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer2.0.downsample.1.weight": (512,),
        "layer3.5.conv2.weight": (256, 256, 3, 3),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
        "fc.weight": (1000, 2048),
    }
    assert {name: tuple(state[name].shape) for name in expected} == expected
    assert not any("layer1.1.downsample" in name for name in state)
    assert len(state) == 53 + 2 * 53 + 2  # convolutions, norms, classifier


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_preprocessing_fits_the_architecture(name: str) -> None:
    wanted = architecture(name)
    shape = wanted.preprocessing
    with torch.device("meta"):
        module = wanted.build(wanted.classes)
        image = torch.zeros(2, shape.channels, shape.height, shape.width)
    assert module(image).shape == (2, wanted.classes)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ZottaError, match="vit_base_patch16_224"):
        architecture("vit_gigantic")


@pytest.fixture(scope="module")
def small() -> nn.Module:
    return nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8)))


def _wrapped(state: dict[str, Tensor], how: str) -> object:
    prefixed = {f"module.{name}": value for name, value in state.items()}
    return {
        "plain": state,
        "model": {"model": state, "epoch": 3},
        "state_dict": {"state_dict": state, "best": 0.5},
        "net": {"net": state, "acc": 1},
        "state": {"state": state},
        "module prefix": {"state_dict": prefixed},
        "nested": {"state": {"model": prefixed}},
    }[how]


@pytest.mark.parametrize(
    "how", ["plain", "model", "state_dict", "net", "state", "module prefix", "nested"]
)
def test_wrapped_state_dicts_are_understood(small: nn.Module, tmp_path: Path, how: str) -> None:
    state = small.state_dict()
    torch.save(_wrapped(state, how), tmp_path / "weights.pth")
    read = read_checkpoint(tmp_path / "weights.pth")
    assert all(torch.equal(read[name], value) for name, value in state.items())
    assert read.keys() == state.keys()


def test_safetensors_and_pth_are_the_same(small: nn.Module, tmp_path: Path) -> None:
    save_file(small.state_dict(), tmp_path / "weights.safetensors")
    read = read_checkpoint(tmp_path / "weights.safetensors")
    assert all(torch.equal(read[name], value) for name, value in small.state_dict().items())


def test_a_checkpoint_without_step_counters_loads(small: nn.Module) -> None:
    state = {name: value for name, value in small.state_dict().items() if "tracked" not in name}
    load_weights(small, state, Path("old.pth"))


def test_keys_and_shapes_that_do_not_fit_are_named(small: nn.Module) -> None:
    state = dict(small.state_dict())
    state["other.weight"] = state.pop("conv.weight")
    state["norm.bias"] = torch.zeros(9)
    before = {name: value.clone() for name, value in small.state_dict().items()}
    with pytest.raises(ZottaError) as caught:
        load_weights(small, state, Path("wrong.pth"))
    message = str(caught.value)
    assert "wrong.pth" in message
    assert "missing: conv.weight" in message
    assert "unexpected: other.weight" in message
    assert "norm.bias 9 for 8" in message
    assert all(torch.equal(small.state_dict()[name], value) for name, value in before.items())


def test_many_wrong_keys_are_counted(shared_data: Path) -> None:
    path = shared_data / "deit-tiny/deit_tiny_patch16_224.pth"
    module = architecture("resnet50_gn").build(1000)
    with pytest.raises(ZottaError, match=r"missing: .* more; unexpected: .* more") as caught:
        load_weights(module, read_checkpoint(path), path)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x02}q.", b"PK\x03\x04..."])
def test_damaged_checkpoints_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ZottaError, match="weights"):
        read_checkpoint(tmp_path / name)


def test_a_cut_checkpoint_is_refused(small: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(small.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ZottaError, match="no readable checkpoint"):
        read_checkpoint(path)


class _Code:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code in a checkpoint ran",)


def test_code_in_a_checkpoint_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": _Code()}, tmp_path / "weights.pth")
    with pytest.raises(ZottaError, match="weights_only"):
        read_checkpoint(tmp_path / "weights.pth")
    assert "ran" not in capsys.readouterr().out


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "weights.pth")
    with pytest.raises(ZottaError, match="holds no state dict"):
        read_checkpoint(tmp_path / "weights.pth")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ZottaError, match="no weights at"):
        read_checkpoint(tmp_path / "absent.pth")


EMBEDDED = [embedded.MODEL, embedded.RESNET]


def _prepared(images: np.ndarray, path: Path) -> np.ndarray:
    return prepare(images, read_info(path).preprocessing)


@pytest.mark.parametrize("path", EMBEDDED, ids=lambda path: path.stem)
def test_embedded_models_are_small_int8_and_calibrated(path: Path) -> None:
    info = read_info(path)
    assert path.stat().st_size < 500_000
    assert info.recipe.precision == "int8"
    assert info.labels == tuple("0123456789")
    assert info.calibration is not None
    assert info.chosen


@pytest.mark.parametrize("path", EMBEDDED, ids=lambda path: path.stem)
def test_embedded_models_read_digits_and_corruption_hurts_them(path: Path) -> None:
    with np.load(embedded.STREAM) as stream:
        images, labels = stream["images"], stream["labels"]
    clean = _onnx_logits(path, _prepared(images, path)).argmax(1)
    foggy = np.stack([sample.image for sample in embedded.corrupted_stream()])
    hurt = _onnx_logits(path, _prepared(foggy, path)).argmax(1)
    assert (clean == labels).mean() > 0.97
    assert 0.3 < (hurt == labels).mean() < 0.7


def test_the_corrupted_stream_is_the_same_every_time() -> None:
    first, second = (list(embedded.corrupted_stream()) for _ in range(2))
    assert len(first) == len(second) == 1079
    pairs = zip(first, second, strict=True)
    assert all(np.array_equal(one.image, other.image) for one, other in pairs)
    assert first[0].image.shape == (32, 32, 1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_training_learns() -> None:
    data, stream = digits()
    with np.load(embedded.STREAM) as shipped:
        assert np.array_equal(shipped["images"], stream.images)
    model = train("digits_vit", data, Recipe(epochs=8))
    share = accuracy(model, as_input("digits_vit", stream.images), stream.labels)
    assert share > 0.4  # of ten classes, after 8 of 60 epochs


@pytest.mark.usefixtures("one_thread")
def test_training_repeats() -> None:
    data, _ = digits()
    few = Digits(data.images[:192], data.labels[:192])
    first, second = (train("digits_resnet_gn", few, Recipe(epochs=1)) for _ in range(2))
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
