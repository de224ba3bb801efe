"""A real adaptable model file that is small enough to adapt in milliseconds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.format import (
    Calibration,
    Layer,
    ModelInfo,
    Norm,
    Preprocessing,
    Recipe,
    to_metadata,
)

WIDTH, TOKENS, BLOCKS, CLASSES = 16, 4, 4, 5
CHOSEN = (1, 2)
SHIFT = 1.5  # added to an image: a drift nobody could miss

Floats = NDArray[np.float32]


def images(count: int, seed: int = 0, shift: float = 0.0) -> Floats:
    """Preprocessed images of the source, or of a drifted stream."""
    pixels = np.random.default_rng(seed).standard_normal((count, 1, 8, 8), dtype=np.float32)
    return pixels + np.float32(shift)


def build(path: Path, chosen: tuple[int, ...] = CHOSEN, calibrated: bool = True) -> Path:
    """x <- x + tanh(LayerNorm(x) * scale + shift) W, four times, then a linear head."""
    rng = np.random.default_rng(7)
    graph = _Graph()
    graph.node("Reshape", ["image", graph.tensor("shape", np.array([-1, TOKENS, WIDTH]))], "x.0")
    layers, affines = [], {}
    for block in range(BLOCKS):
        norm = Norm(f"blocks.{block}.norm", WIDTH, "tokens")
        layers.append(
            Layer(f"blocks.{block}", f"feature.{block}", f"x.{block + 1}", "tokens", WIDTH, (norm,))
        )
        affines[norm.scale] = np.ones(norm.shape, np.float32)
        affines[norm.shift] = rng.normal(size=norm.shape).astype(np.float32) / 4
        graph.block(norm, rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3, block, affines)
    graph.node("ReduceMean", [f"x.{BLOCKS}"], "embedding", axes=[1], keepdims=0)
    head = rng.normal(size=(WIDTH, CLASSES)).astype(np.float32)
    graph.node("MatMul", ["embedding", graph.tensor("head", head)], "logits")
    info = ModelInfo(
        preprocessing=Preprocessing(8, 8, (0.5,), (0.125,)),
        layers=tuple(layers),
        recipe=Recipe("fp32", "none", "any", "test"),
        affines=affines,
        classes=CLASSES,
    )
    model = graph.model(affines)
    _write(model, info, path)
    if calibrated:
        _write(model, info.with_calibration(_calibrate(path, chosen)), path)
    return path


def edited(path: Path, edit: Callable[[onnx.ModelProto], object]) -> Path:
    """A copy of the file beside it, changed by `edit`."""
    model = onnx.load(path)
    edit(model)
    copy = path.with_name("edited.onnx")
    onnx.save(model, copy)
    return copy


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def tensor(self, name: str, value: NDArray[np.generic]) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def block(self, norm: Norm, weight: Floats, index: int, affines: dict[str, Floats]) -> None:
        for name in (norm.scale, norm.shift):
            self.tensor(name, affines[name])
        one = self.tensor(f"one.{index}", np.ones(WIDTH, np.float32))
        hat = self.node("LayerNormalization", [f"x.{index}", one], f"hat.{index}")
        scaled = self.node("Mul", [hat, norm.scale], f"scaled.{index}")
        moved = self.node("Add", [scaled, norm.shift], f"moved.{index}")
        bent = self.node("Tanh", [moved], f"bent.{index}")
        mixed = self.node("MatMul", [bent, self.tensor(f"w.{index}", weight)], f"mixed.{index}")
        self.node("Add", [f"x.{index}", mixed], f"x.{index + 1}")
        self.node("ReduceMean", [f"x.{index + 1}"], f"feature.{index}", axes=[1], keepdims=0)

    def model(self, affines: dict[str, Floats]) -> onnx.ModelProto:
        def declare(name: str, *shape: object) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        inputs = [declare(name, "n", 1, WIDTH) for name in affines]
        outputs = [
            declare("logits", "batch", CLASSES),
            *(declare(f"feature.{index}", "batch", WIDTH) for index in range(BLOCKS)),
            declare("embedding", "batch", WIDTH),
        ]
        image = declare("image", "batch", 1, 8, 8)
        graph = helper.make_graph(self.nodes, "toy", [image, *inputs], outputs, self.initializers)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _calibrate(path: Path, chosen: tuple[int, ...]) -> Calibration:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [*(f"feature.{index}" for index in range(BLOCKS)), "embedding"]
    *features, embedding = session.run(names, {"image": images(256, seed=99)})
    return Calibration(
        mean=tuple(feature.mean(axis=0) for feature in features),
        std=tuple(feature.std(axis=0) for feature in features),
        embedding_mean=embedding.mean(axis=0),
        embedding_std=embedding.std(axis=0),
        chosen=chosen,
        purity=(),
        samples=256,
        rule="given",
        tau=0.6,
        seed=0,
        source="test",
        ood="",
        seconds=0.0,
    )


def _write(model: onnx.ModelProto, info: ModelInfo, path: Path) -> None:
    del model.metadata_props[:]
    for key, value in to_metadata(replace(info)).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


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
