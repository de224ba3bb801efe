"""Norms become ordered layers, and each layer's pooled feature an output of the graph."""

from pathlib import Path

import nets
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from zotta_edge.errors import ZottaError
from zotta_edge.export.layers.group import add_features
from zotta_edge.export.norms.expose import expose_norms
from zotta_edge.export.sources.classifier import as_classifier
from zotta_edge.format import Layer

Floats = NDArray[np.float32]
AXES = {"tokens": 1, "map": (2, 3), "nhwc": (1, 2), "vector": ()}


def layers_of(model: onnx.ModelProto, pattern: str | None = None) -> tuple[Layer, ...]:
    """Build the layers, and check every pooled output against the tensor that it is the mean of."""
    classifier = as_classifier(model)
    norms = expose_norms(classifier)
    layers = add_features(classifier, norms, pattern)
    onnx.checker.check_model(model)
    assert [norm for layer in layers for norm in layer.norms] == [item.norm for item in norms]
    check_features(model, layers)
    return layers


def check_features(model: onnx.ModelProto, layers: tuple[Layer, ...]) -> None:
    features = [layer.feature for layer in layers]
    assert features == [f"feature.{index}" for index in range(len(layers))]
    names = [value.name for value in model.graph.output]
    assert names == ["logits", *features, "embedding"]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(onnx.ValueInfoProto(name=layer.tensor) for layer in layers)
    outputs = run(probe)
    for layer in layers:
        tensor, feature = outputs[layer.tensor], outputs[layer.feature]
        assert feature.shape == (3, layer.channels)
        np.testing.assert_allclose(feature, tensor.mean(AXES[layer.kind]), atol=1e-5)


def run(model: onnx.ModelProto) -> dict[str, Floats]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    content = model.SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    images = np.random.default_rng(0).standard_normal((3, *shape), dtype=np.float32)
    names = list(dict.fromkeys(value.name for value in session.get_outputs()))
    return dict(zip(names, session.run(names, {"image": images}), strict=True))


def summary(layers: tuple[Layer, ...]) -> list[tuple[str, str, int, int]]:
    return [(layer.name, layer.kind, layer.channels, len(layer.norms)) for layer in layers]


def anonymous(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without anything that tells its modules' names."""
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
        del node.metadata_props[:]
    renamed = {tensor.name: f"p{i}" for i, tensor in enumerate(model.graph.initializer)}
    for tensor in model.graph.initializer:
        tensor.name = renamed[tensor.name]
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    return model


@pytest.mark.parametrize(
    ("name", "opset", "expected"),
    [
        (
            "vit",
            17,
            [*((f"blocks.{i}", "tokens", 16, 2) for i in range(3)), ("norm", "tokens", 16, 1)],
        ),
        (
            "vit",
            18,
            [*((f"blocks.{i}", "tokens", 16, 2) for i in range(3)), ("norm", "tokens", 16, 1)],
        ),
        (
            "resnet-bn",
            11,
            [("stem", "map", 8, 1), ("layer1", "map", 8, 4), ("layer2", "map", 16, 5)],
        ),
        (
            "preact",
            17,
            [("layer1", "map", 8, 2), ("layer2", "map", 16, 2), ("norm", "map", 16, 1)],
        ),
        (
            "convnext",
            13,
            [
                ("stem", "map", 8, 1),
                ("stages.0", "map", 8, 2),
                ("stages.1", "map", 16, 2),
                ("norm", "vector", 16, 1),
            ],
        ),
        (
            "swin",
            17,
            [
                ("stem", "nhwc", 8, 1),
                ("layers.0", "nhwc", 8, 4),
                ("layers.1", "nhwc", 8, 4),
                ("norm", "nhwc", 8, 1),
            ],
        ),
        (
            "vgg",
            17,
            [
                ("features.1", "map", 8, 1),
                ("features.4", "map", 8, 1),
                ("features.8", "map", 16, 1),
                ("features.11", "map", 16, 1),
                ("norm", "vector", 20, 1),
            ],
        ),
    ],
)
def test_layers_by_name(name: str, opset: int, expected: list[tuple[str, str, int, int]]) -> None:
    assert summary(layers_of(nets.load(name, opset))) == expected


@pytest.mark.parametrize(
    ("name", "opset", "expected"),
    [
        ("vit", 17, [2, 2, 2, 1]),  # MLP halves join their attention halves
        ("vit", 11, [2, 2, 2, 1]),
        ("resnet-bn", 17, [1, 4, 5]),  # the first maps are larger than those of the first stage
        ("preact", 17, [2, 2, 1]),
        ("convnext", 17, [4, 1, 1]),  # norms around the first stage have maps of its shape
        ("vgg", 17, [2, 2, 1]),
    ],
)
def test_layers_by_structure_where_names_say_nothing(
    name: str, opset: int, expected: list[int]
) -> None:
    model = anonymous(nets.load(name, opset))
    assert [len(layer.norms) for layer in layers_of(model)] == expected


def test_layers_by_pattern() -> None:
    by_block = layers_of(nets.load("resnet-bn", 17), r"layer\d\.\d")
    assert [layer.name for layer in by_block] == [
        "stem",
        *("layer1.0", "layer1.1", "layer2.0", "layer2.1"),
    ]
    by_stage = layers_of(nets.load("vit", 17), r"blocks\.([01])\.")
    assert [layer.name for layer in by_stage][:2] == ["0", "1"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("nothing", r"matches none of the 7 norms.*blocks\.0\.norm1"), ("(", "regular expression")],
)
def test_pattern_that_cannot_work_is_refused(pattern: str, message: str) -> None:
    classifier = as_classifier(nets.load("vit", 17))
    norms = expose_norms(classifier)
    with pytest.raises(ZottaError, match=message):
        add_features(classifier, norms, pattern)


def test_layers_without_an_output_of_their_own_join_the_next() -> None:
    """norm1 and norm2 of a block lie on one branch: no cut separates them."""
    layers = layers_of(nets.load("resnet-gn", 13), r"layer\d\.\d\.norm\d|layer\d\.\d\.down")
    assert [layer.name for layer in layers] == [
        "stem",
        *(
            f"layer{i}.{j}.norm2" if (i, j) != (2, 0) else "layer2.0.down"
            for i in (1, 2)
            for j in (0, 1)
        ),
    ]


def test_embedding_is_what_the_head_reads() -> None:
    model = nets.load("vit", 17)
    layers_of(model)
    head = nets.make("vit").head
    outputs = run(model)
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    expected = outputs["embedding"] @ weight.T + bias
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-5)


def test_embedding_of_a_convolutional_head_is_pooled() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[b, 3, 8, 8] x) => (float[b, 5] y) {
        f = Conv(x, conv)
        normed = InstanceNormalization(f, scale, shift)
        t = Tanh(normed)
        classes = Conv(t, head)
        pooled = GlobalAveragePool(classes)
        y = Flatten(pooled)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    shapes = {"conv": (8, 3, 1, 1), "head": (5, 8, 1, 1), "scale": (8,), "shift": (8,)}
    for name, shape in shapes.items():
        value = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    head = onnx.numpy_helper.to_array(model.graph.initializer[1])[:, :, 0, 0]
    layers_of(model)
    outputs = run(model)
    np.testing.assert_allclose(outputs["logits"], outputs["embedding"] @ head.T, atol=1e-5)


def test_outputs_survive_a_node_order_that_is_not_topological() -> None:
    model = nets.load("resnet-bn", 17)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [layer.name for layer in layers_of(model)] == ["stem", "layer1", "layer2"]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blocks.3.norm1", "blocks.3"),
        ("vit.encoder.layer.3.layernorm_before", "vit.encoder.layer.3"),
        ("encoder.layers.encoder_layer_3.ln_1", "encoder.layers.encoder_layer_3"),
        ("transformer.h.3.ln_1", "transformer.h.3"),
        ("layer3.0.bn1", "layer3"),
        ("stages.3.blocks.1.norm", "stages.3"),
        ("_blocks.3._bn1", "_blocks.3"),
        ("features.denseblock3.denselayer1.norm1", "features.denseblock3"),
        ("conv3_block1_1_bn", "conv3"),
        ("block3a_expand_bn", "block3"),
        ("downsample_layers.3.0", ""),
        ("layernorm1", ""),
    ],
)
def test_names_of_blocks(name: str, layer: str) -> None:
    from zotta_edge.export.layers.group import _BLOCK, _key

    assert _key(_BLOCK, name) == layer


def test_deit(shared_data: Path) -> None:
    model = onnx.load(shared_data / "deit-tiny" / "deit_tiny_fp32.onnx")
    layers = layers_of(model)
    assert [layer.name for layer in layers] == [*(f"blocks.{i}" for i in range(12)), "norm"]
    for index, layer in enumerate(layers[:12]):
        assert layer.tensor.endswith(f"/blocks.{index}/Add_1_output_0")
    assert sum(layer.parameters for layer in layers) == 25 * 2 * 192


def test_efficientnet_lite0() -> None:
    library = pytest.importorskip("efficientnet_lite_pytorch")
    net = library.EfficientNet.from_name("efficientnet-lite0").eval()
    model = nets.export(net, 17, size=64)
    layers = layers_of(model)
    names = ["stem", *(f"_blocks.{i}" for i in range(16)), "_bn1"]
    assert [layer.name for layer in layers] == names
    assert sum(len(layer.norms) for layer in layers) == 49
    assert not any(node.op_type == "BatchNormalization" for node in model.graph.node)


def test_rn26(shared_data: Path) -> None:
    model = onnx.load(shared_data / "cifar10-rn26-gn" / "cifar10_rn26_gn.onnx")
    assert summary(layers_of(model)) == [
        ("layer1", "map", 16, 8),
        ("layer2", "map", 32, 8),
        ("layer3", "map", 64, 8),
        ("bn", "map", 64, 1),
    ]
