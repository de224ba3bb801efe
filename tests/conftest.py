"""Fixtures every test may use."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever runs a published model, or makes its stand-in, takes seconds."""
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published models and images, which may not be copied into the project, or their stand-in."""
    if SHARED.is_dir():
        return SHARED
    import stand_in

    return stand_in.make(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The published models and images themselves: for tests of how accurate they are."""
    if not SHARED.is_dir():
        pytest.skip("needs the published weights and images beside the checkout")
    return SHARED


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every session that is opened."""
    opened: list[object] = []
    start = ort.InferenceSession.__init__

    def counted(self: object, *arguments: object, **options: object) -> None:
        opened.append(self)
        start(self, *arguments, **options)

    monkeypatch.setattr(ort.InferenceSession, "__init__", counted)
    return opened


@pytest.fixture(scope="session")
def residual_net() -> onnx.ModelProto:
    """A small fp32 classifier as an exporter would write it: two residual stages with BatchNorm."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}

    def conv_norm(x: str, name: str, inputs: int, outputs: int, stride: int = 1) -> str:
        weights[f"{name}.conv.weight"] = rng.normal(
            0, (inputs * 9) ** -0.5, (outputs, inputs, 3, 3)
        )
        weights[f"{name}.bn.weight"] = rng.uniform(0.5, 1.5, outputs)
        weights[f"{name}.bn.bias"] = rng.normal(0, 0.2, outputs)
        weights[f"{name}.bn.mean"] = rng.normal(0, 0.2, outputs)
        weights[f"{name}.bn.var"] = rng.uniform(0.5, 1.5, outputs)
        nodes.append(
            helper.make_node(
                "Conv",
                [x, f"{name}.conv.weight"],
                [f"{name}.conv"],
                name=f"/{name}/conv/Conv",
                pads=[1, 1, 1, 1],
                strides=[stride, stride],
            )
        )
        statistics = [f"{name}.bn.{part}" for part in ("weight", "bias", "mean", "var")]
        nodes.append(
            helper.make_node(
                "BatchNormalization",
                [f"{name}.conv", *statistics],
                [f"{name}.bn"],
                name=f"/{name}/bn/BatchNormalization",
            )
        )
        return f"{name}.bn"

    def node(op: str, inputs: list[str], output: str) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"/{output}"))
        return output

    x = node("Relu", [conv_norm("x", "stem", 3, 8)], "stem.out")
    for stage, (inputs, outputs) in enumerate(((8, 8), (8, 16)), start=1):
        x = node("Relu", [conv_norm(x, f"layer{stage}.0", inputs, outputs, stage)], f"s{stage}.a")
        branch = conv_norm(x, f"layer{stage}.1", outputs, outputs)
        x = node("Relu", [node("Add", [x, branch], f"s{stage}.sum")], f"s{stage}.out")
    x = node("Flatten", [node("GlobalAveragePool", [x], "pool")], "flat")
    weights["fc.weight"], weights["fc.bias"] = rng.normal(0, 0.5, (16, 5)), rng.normal(0, 0.1, 5)
    node("Gemm", [x, "fc.weight", "fc.bias"], "y")
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 5])],
        [numpy_helper.from_array(value.astype(np.float32), key) for key, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
