"""Every norm is found, in whatever form, and its affine becomes an input that works per sample."""

import re
from pathlib import Path

import nets
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.norms.expose import ExposedNorm, expose_norms
from zotta_edge.export.sources.classifier import as_classifier

Floats = NDArray[np.float32]
TOLERANCE = 1e-5  # relative to the largest logit


class Runner:
    """One session of a model; a call answers with its first output."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        content = model.SerializeToString()
        self.session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self.input = model.graph.input[0].name
        self.output = model.graph.output[0].name

    def __call__(self, images: Floats, **affines: Floats) -> Floats:
        return self.session.run([self.output], {self.input: images} | affines)[0]


def affines(model: onnx.ModelProto) -> dict[str, Floats]:
    inputs = {value.name for value in model.graph.input}
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name in inputs
    }


def check_exposed(source: onnx.ModelProto) -> list[ExposedNorm]:
    """Expose and compare: same logits, per-sample affines, no affine without effect."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    classifier = as_classifier(model)
    found = expose_norms(classifier)
    onnx.checker.check_model(model)
    before, after = Runner(source), Runner(model)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((5, *classifier.image), dtype=np.float32)
    expected = np.concatenate([before(images[i : i + 1]) for i in range(5)])
    tolerance = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(after(images), expected, atol=tolerance)
    np.testing.assert_allclose(after(images[:1]), expected[:1], atol=tolerance)
    check_per_sample(after, affines(model), images, tolerance)
    check_alive(after, affines(model), images)
    return list(found)


def check_per_sample(
    model: Runner, source: dict[str, Floats], images: Floats, tolerance: float
) -> None:
    rng = np.random.default_rng(1)
    moved = {
        name: (value + 0.1 * rng.standard_normal((5, *value.shape[1:]))).astype(np.float32)
        for name, value in source.items()
    }
    together = model(images, **moved)
    for i in range(5):
        alone = model(
            images[i : i + 1], **{name: value[i : i + 1] for name, value in moved.items()}
        )
        np.testing.assert_allclose(together[i : i + 1], alone, atol=10 * tolerance)


def check_alive(model: Runner, source: dict[str, Floats], images: Floats) -> None:
    rng = np.random.default_rng(2)
    logits = model(images[:2])
    for name, value in source.items():
        moved = (value + 0.5 * rng.standard_normal(value.shape)).astype(np.float32)
        assert np.abs(model(images[:2], **{name: moved}) - logits).max() > 1e-5, name


def kinds(found: list[ExposedNorm]) -> set[tuple[str, str]]:
    return {(item.form, item.norm.kind) for item in found}


LN, RMS = "LayerNormalization", "RMSNormalization"
GN, IN, BN = "GroupNormalization", "InstanceNormalization", "BatchNormalization"


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("vit", 7, {(LN, "tokens")}),
        ("vit-rms", 7, {(RMS, "tokens")}),
        ("resnet-bn", 10, {(BN, "map")}),
        ("resnet-gn", 10, {(GN, "map")}),
        ("resnet-in", 10, {(IN, "map")}),
        ("preact", 5, {(BN, "map")}),
        ("convnext", 6, {(LN, "map"), (LN, "nhwc"), (LN, "vector")}),
        ("swin", 10, {(LN, "nhwc")}),
    ],
)
def test_torchscript_exports(
    name: str, count: int, expected: set[tuple[str, str]], opset: int
) -> None:
    found = check_exposed(nets.load(name, opset))
    assert len(found) == count
    assert kinds(found) == expected


@pytest.mark.parametrize(
    ("name", "opset", "expected"),
    [
        ("vit", 18, {(LN, "tokens")}),
        ("vit-torch-rms", 21, {(RMS, "tokens")}),
        ("vit-torch-rms", 23, {(RMS, "tokens")}),
        ("resnet-gn", 18, {(GN, "map")}),
        ("resnet-gn", 21, {(GN, "map")}),
        ("preact", 23, {(BN, "map")}),
        ("convnext", 21, {(LN, "map"), (LN, "nhwc"), (LN, "vector")}),
    ],
)
def test_dynamo_exports(name: str, opset: int, expected: set[tuple[str, str]]) -> None:
    assert kinds(check_exposed(nets.load(name, opset))) >= expected


@pytest.mark.parametrize(
    ("name", "opset"),
    [("vit", 17), ("vit-torch-attention", 17), ("swin", 17), ("resnet-gn", 13), ("vit", 21)],
)
def test_fixed_batch_is_freed(name: str, opset: int) -> None:
    model = nets.load(name, opset, batch=1)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    check_exposed(model)


def test_names_are_module_paths() -> None:
    expected = [f"blocks.{i}.norm{j}" for i in range(3) for j in (1, 2)] + ["norm"]
    for opset in (11, 17, 18):
        found = expose_norms(as_classifier(nets.load("vit", opset)))
        assert [item.norm.name for item in found] == expected


def test_exposed_values_are_those_of_the_torch_module() -> None:
    net = nets.make("resnet-bn")
    model = nets.export(net, 17)
    expose_norms(as_classifier(model))
    values = affines(model)
    state = net.state_dict()
    assert values["layer1.0.norm1.scale"].shape == (1, 8, 1, 1)
    for name in ("norm1", "layer1.1.norm2", "layer2.0.down.1"):
        np.testing.assert_array_equal(values[f"{name}.scale"].ravel(), state[f"{name}.weight"])
        np.testing.assert_array_equal(values[f"{name}.shift"].ravel(), state[f"{name}.bias"])
    assert not any(node.op_type == BN for node in model.graph.node)  # statistics are in the Convs


def test_final_softmax_is_cut() -> None:
    import torch

    net = nets.make("vgg")
    model = nets.export(net, 17)
    found = expose_norms(as_classifier(model))
    assert kinds(list(found)) == {(BN, "map"), (BN, "vector")}
    images = torch.randn(4, 3, nets.SIZE, nets.SIZE)
    with torch.no_grad():
        expected = net.logits(images).numpy()
    np.testing.assert_allclose(Runner(model)(images.numpy()), expected, atol=1e-5)


def graph(text: str, **constants: Floats | NDArray[np.int64]) -> onnx.ModelProto:
    """A model in ONNX's text form, plus initializers."""
    model = onnx.parser.parse_model(text)
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def values(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> Floats:
    return np.abs(values(*shape, seed=seed)) + 0.5


HEAD = """
    pooled = GlobalAveragePool(normed)
    flat = Flatten(pooled)
    y = Gemm(flat, head)
"""


def map_graph(body: str, opset: int, **constants: Floats | NDArray[np.int64]) -> onnx.ModelProto:
    """x [b, 3, 8, 8] -> 1 x 1 Conv -> f [b, 8, 8, 8] -> `body` -> normed -> head."""
    domain = ', "com.microsoft" : 1' if "com.microsoft" in body else ""
    text = f"""
    <ir_version: 8, opset_import: ["" : {opset}{domain}]>
    net (float[b, 3, 8, 8] x) => (float[b, 5] y) {{
        f = Conv(x, conv)
        {body}
        {HEAD}
    }}"""
    return graph(text, conv=values(8, 3, 1, 1), head=values(8, 5, seed=1), **constants)


def test_norms_that_share_merged_initializers_get_inputs_of_their_own() -> None:
    body = """
        a = InstanceNormalization(f, scale, shift)
        r = Relu(a)
        c = Conv(r, second)
        b = InstanceNormalization(c, scale, shift)
        normed = Tanh(b)"""
    model = map_graph(body, 13, second=values(8, 8, 1, 1), scale=positive(8), shift=values(8))
    found = check_exposed(model)
    assert [item.norm.name for item in found] == ["norm0", "norm1"]


def test_group_normalization_of_opset_18_has_a_scale_for_each_group() -> None:
    body = "g = GroupNormalization <num_groups = 2> (f, scale, shift) \n normed = Tanh(g)"
    model = map_graph(body, 18, scale=positive(2), shift=values(2))
    (found,) = check_exposed(model)
    assert (found.form, found.norm.channels) == (GN, 8)


def test_batch_norm_of_a_convolution_that_others_read_is_not_folded() -> None:
    body = """
        bn = BatchNormalization(f, scale, shift, mean, variance)
        normed = Add(bn, f)"""
    arrays = {"scale": positive(8), "shift": values(8), "mean": values(8, seed=3)}
    model = map_graph(body, 15, **arrays, variance=positive(8, seed=4))
    (found,) = check_exposed(model)
    assert found.form == BN


def test_batch_norm_of_a_transposed_convolution() -> None:
    body = """
        up = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (f, kernel, bias)
        bn = BatchNormalization(up, scale, shift, mean, variance)
        normed = Relu(bn)"""
    model = map_graph(
        body,
        15,
        kernel=values(8, 8, 2, 2),
        bias=values(8),
        scale=positive(8),
        shift=values(8),
        mean=values(8, seed=3),
        variance=positive(8, seed=4),
    )
    check_exposed(model)


def test_batch_norm_as_a_product_and_a_sum() -> None:
    """tf2onnx folds the statistics into the affine, and the affine stays behind the convolution."""
    body = """
        scaled = Mul(f, scale)
        shifted = Add(scaled, shift)
        normed = Relu(shifted)"""
    model = map_graph(body, 13, scale=positive(1, 8, 1, 1), shift=values(8, 1, 1))
    (found,) = check_exposed(model)
    assert (found.form, found.norm.kind, found.norm.inserted) == (BN, "map", False)


def test_arithmetic_on_the_image_is_no_norm() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    net (float[b, 3, 8, 8] x) => (float[b, 5] y) {
        turned = Transpose <perm = [0, 1, 2, 3]> (x)
        unit = Mul(turned, scale)
        centred = Add(unit, shift)
        f = Conv(centred, conv)
        n = InstanceNormalization(f, ones, ones)
        normed = Tanh(n)
        pooled = GlobalAveragePool(normed)
        flat = Flatten(pooled)
        y = Gemm(flat, head)
    }"""
    arrays = {"scale": positive(3, 1, 1), "shift": values(3, 1, 1), "ones": positive(8)}
    model = graph(text, conv=values(8, 3, 1, 1), head=values(8, 5, seed=1), **arrays)
    assert len(check_exposed(model)) == 1


@pytest.mark.parametrize(("axis", "shape"), [(1, (8, 8, 8)), (2, (8, 8))])
def test_layer_norm_over_several_axes(axis: int, shape: tuple[int, ...]) -> None:
    """Each place has a scale of its own: the affine of each channel goes behind them."""
    body = f"l = LayerNormalization <axis = {axis}> (f, scale, shift) \n normed = Tanh(l)"
    model = map_graph(body, 17, scale=positive(*shape), shift=values(*shape))
    (found,) = check_exposed(model)
    assert (found.norm.channels, found.norm.kind) == (8, "map")


GROUPED = """
    last = Transpose <perm = [0, 2, 3, 1]> (f)
    split = Reshape(last, groups)
    mean = ReduceMean <axes = [1, 2, 4]> (split)
    off = Sub(split, mean)
    square = Mul(off, off)
    variance = ReduceMean <axes = [1, 2, 4]> (square)
    safe = Add(variance, epsilon)
    root = Sqrt(safe)
"""
CENTRED = "quotient = Div(off, root) \n scaled = Mul(quotient, gamma) \n total = Add(scaled, beta)"
FACTORED = """
    inverse = Reciprocal(root)
    factor = Mul(inverse, gamma)
    scaled = Mul(split, factor)
    moved = Mul(mean, factor)
    rest = Sub(beta, moved)
    total = Add(scaled, rest)
"""


@pytest.mark.parametrize("affine", [CENTRED, FACTORED])
def test_group_norm_of_five_axes(affine: str) -> None:
    """Keras: [batch, H, W, group, C / group], with the affine in that shape, too."""
    joined = """
        joined = Reshape(total, whole)
        turned = Transpose <perm = [0, 3, 1, 2]> (joined)
        normed = Tanh(turned)"""
    model = map_graph(
        GROUPED + affine + joined,
        13,
        groups=np.array([-1, 8, 8, 2, 4]),
        whole=np.array([-1, 8, 8, 8]),
        gamma=positive(1, 1, 1, 2, 4),
        beta=values(1, 1, 1, 2, 4),
        epsilon=np.array([1e-3], np.float32),
    )
    (found,) = check_exposed(model)
    assert (found.form, found.norm.channels, found.norm.kind) == (GN, 8, "nhwc")


@pytest.mark.parametrize("gamma", [(8, 1, 1), (8,)])
def test_decomposed_layer_norm_over_several_axes(gamma: tuple[int, ...]) -> None:
    last = len(gamma) == 1
    turn, back = "0, 2, 3, 1" if last else "0, 1, 2, 3", "0, 3, 1, 2" if last else "0, 1, 2, 3"
    body = f"""
        t = Transpose <perm = [{turn}]> (f)
        mean = ReduceMean <axes = [1, 2, 3]> (t)
        off = Sub(t, mean)
        square = Mul(off, off)
        variance = ReduceMean <axes = [1, 2, 3]> (square)
        safe = Add(variance, epsilon)
        root = Sqrt(safe)
        quotient = Div(off, root)
        scaled = Mul(quotient, gamma)
        total = Add(scaled, beta)
        turned = Transpose <perm = [{back}]> (total)
        normed = Tanh(turned)"""
    arrays = {"gamma": positive(*gamma), "beta": values(*gamma)}
    model = map_graph(body, 13, **arrays, epsilon=np.array([1e-3], np.float32))
    (found,) = check_exposed(model)
    assert (found.norm.channels, found.norm.kind) == (8, "nhwc" if last else "map")


TOKENS = "flat8 = Reshape(f, to_tokens) \n t = Transpose <perm = [0, 2, 1]> (flat8)"
BACK = "normed = Reshape(back, to_map)"


def token_graph(body: str, opset: int, **constants: Floats) -> onnx.ModelProto:
    """As `map_graph`, with tokens t [b, 64, 8] that `body` turns into n."""
    wrapped = f"{TOKENS} \n {body} \n back = Transpose <perm = [0, 2, 1]> (n) \n {BACK}"
    shapes = {"to_tokens": np.array([0, 8, 64]), "to_map": np.array([0, 8, 8, 8])}
    return map_graph(wrapped, opset, **shapes, **constants)


DEVIATION = """
    mean = ReduceMean <axes = [-1]> (t)
    d = Sub(t, mean)
    square = Mul(d, d)
    variance = ReduceMean <axes = [-1]> (square)
    total = Add(epsilon, variance)
"""
VARIANTS = {
    "division": "r = Sqrt(total) \n q = Div(d, r) \n m = Mul(scale, q) \n n = Add(shift, m)",
    "reciprocal": "r = Sqrt(total) \n i = Reciprocal(r) \n q = Mul(i, d) \n m = Mul(q, scale)"
    "\n n = Add(m, shift)",
    "one over": "r = Sqrt(total) \n i = Div(one, r) \n q = Mul(d, i) \n m = Mul(q, scale)"
    "\n n = Add(m, shift)",
    "power": "i = Pow(total, minus_half) \n q = Mul(d, i) \n m = Mul(q, scale)\n n = Add(m, shift)",
    "no shift": "r = Sqrt(total) \n q = Div(d, r) \n n = Mul(q, scale)",
    "no scale": "r = Sqrt(total) \n q = Div(d, r) \n n = Add(q, shift)",
    "casts": "r = Sqrt(total) \n q = Div(d, r) \n c = Cast <to = 1> (q) \n m = Mul(c, scale)"
    "\n n = Add(m, shift)",
    "tensorflow": """
        r = Sqrt(total)
        i = Reciprocal(r)
        a = Mul(i, scale)
        left = Mul(t, a)
        right = Mul(mean, a)
        rest = Sub(shift, right)
        n = Add(left, rest)""",
}


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("variant", VARIANTS)
def test_decomposed_layer_norm(variant: str, opset: int) -> None:
    scalars = {"epsilon": 1e-5, "one": 1.0, "minus_half": -0.5}
    arrays = {name: np.array(value, np.float32) for name, value in scalars.items()}
    body = DEVIATION + VARIANTS[variant]
    model = token_graph(body, opset, scale=positive(8), shift=values(8), **arrays)
    (found,) = check_exposed(model)
    assert (found.form, found.norm.kind) == (LN, "tokens")


def test_ort_simplified_and_skip_norms() -> None:
    body = """
        a = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-5> (t, scale)
        b, no1, no2, sum = com.microsoft.SkipLayerNormalization (a, t, scale, shift, bias)
        c = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (b, sum, scale)
        n = Add(c, sum)"""
    model = token_graph(body, 17, scale=positive(8), shift=values(8), bias=values(8, seed=5))
    for node in model.graph.node:
        if node.op_type == "SkipLayerNormalization":
            node.output[1] = node.output[2] = ""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    found = expose_norms(as_classifier(copy))
    assert [item.form for item in found] == [
        "SimplifiedLayerNormalization",
        LN,
        "SimplifiedLayerNormalization",
    ]
    images = values(3, 3, 8, 8)
    np.testing.assert_allclose(Runner(copy)(images), Runner(model)(images), atol=1e-5)


def test_old_files_that_list_all_initializers_as_inputs() -> None:
    body = "g = InstanceNormalization(f, scale, shift) \n normed = Tanh(g)"
    model = map_graph(body, 11, scale=positive(8), shift=values(8))
    model.ir_version = 3
    for tensor in model.graph.initializer:
        shape = list(tensor.dims)
        entry = helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, shape)
        model.graph.input.append(entry)
    expose_norms(as_classifier(model))
    assert model.ir_version >= 4
    names = [value.name for value in model.graph.input]
    assert names == ["image", "norm0.scale", "norm0.shift"]


def test_source_tensors_make_room_for_reserved_names() -> None:
    body = """
        image = InstanceNormalization(f, a, b)
        embedding = Tanh(image)
        normed = Add(embedding, image)"""
    model = map_graph(body, 13, a=positive(8), b=values(8))
    check_exposed(model)


def test_channels_last_images_keep_their_layout() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[b, 8, 6, 3] pixels) => (float[b, 5] y) {
        x = Transpose <perm = [0, 3, 1, 2]> (pixels)
        f = Conv(x, conv)
        normed = InstanceNormalization(f, scale, shift)
        t = Tanh(normed)
        pooled = GlobalAveragePool(t)
        flat = Flatten(pooled)
        y = Gemm(flat, head)
    }"""
    arrays = {"conv": values(8, 3, 1, 1), "head": values(8, 5), "shift": values(8)}
    model = graph(text, scale=positive(8), **arrays)
    classifier = as_classifier(model)
    assert (classifier.layout, classifier.height, classifier.width) == ("NHWC", 8, 6)
    check_exposed(graph(text, scale=positive(8), **arrays))


def test_convolutional_head_is_flattened_and_its_softmax_cut() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[b, 3, 8, 8] x) => (float[b, 5, 1, 1] y) {
        f = Conv(x, conv)
        normed = InstanceNormalization(f, scale, shift)
        t = Tanh(normed)
        classes = Conv(t, head)
        pooled = GlobalAveragePool(classes)
        y = Softmax <axis = 1> (pooled)
    }"""
    arrays = {"conv": values(8, 3, 1, 1), "head": values(5, 8, 1, 1), "shift": values(8)}
    source, model = (graph(text, scale=positive(8), **arrays) for _ in range(2))
    assert as_classifier(model).classes == 5
    images = values(2, 3, 8, 8)
    powers = np.exp(Runner(model)(images))
    expected = Runner(source)(images)[:, :, 0, 0]
    np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), expected, atol=1e-6)


def test_norm_over_windows_of_the_batch_stays_fixed() -> None:
    """Its first axis is no batch: one affine a sample would not broadcast."""
    body = """
        a = InstanceNormalization(f, scale, shift)
        w = Reshape(a, windows)
        l = LayerNormalization <axis = -1> (w, scale, shift)
        normed = Reshape(l, to_map)"""
    shapes = {"windows": np.array([-1, 4, 8]), "to_map": np.array([-1, 8, 8, 8])}
    model = map_graph(body, 17, scale=positive(8), shift=values(8), **shapes)
    said: list[str] = []
    found = expose_norms(as_classifier(model), said.append)
    assert [item.form for item in found] == [IN]
    assert len(said) == 1
    assert "stays fixed" in said[0]


def no_norms() -> onnx.ModelProto:
    return map_graph("normed = Relu(f)", 17)


def with_metadata() -> onnx.ModelProto:
    model = no_norms()
    helper.set_model_props(model, {"zotta.format": "1"})
    return model


def training() -> onnx.ModelProto:
    body = """
        normed, m, v = BatchNormalization <training_mode = 1> (f, scale, shift, mean, variance)
    """
    arrays = {"scale": positive(8), "shift": values(8), "mean": values(8)}
    return map_graph(body, 15, **arrays, variance=positive(8))


def linear() -> onnx.ModelProto:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[b, 3, 2, 2] x) => (float[b, 5] y) {
        flat = Flatten(x)
        y = Gemm(flat, head)
    }"""
    return graph(text, head=values(12, 5))


def cyclic() -> onnx.ModelProto:
    model = no_norms()
    model.graph.node[0].input[0] = model.graph.node[1].output[0]
    return model


def open_size() -> onnx.ModelProto:
    model = no_norms()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    return model


def welded_batch() -> onnx.ModelProto:
    """A Resize to a constant size knows the batch, and nobody can tell it otherwise."""
    body = 'normed = Resize <mode = "nearest"> (f, , , sizes)'
    model = map_graph(body, 13, sizes=np.array([1, 8, 4, 4]))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (linear(), "no norm layers to adapt"),
        (with_metadata(), "already exported"),
        (training(), r"training mode: call model.eval\(\)"),
        (cyclic(), "cycle"),
        (open_size(), "--size"),
        (welded_batch(), "batch size 1 is fixed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsuitable_models_are_refused(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ZottaError, match=message) as caught:
        expose_norms(as_classifier(model))
    assert "\n" not in str(caught.value)


def test_size_left_open_can_be_given() -> None:
    body = "g = InstanceNormalization(f, scale, shift) \n normed = Tanh(g)"
    model = map_graph(body, 17, scale=positive(8), shift=values(8))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[2].dim_param = dims[3].dim_param = "side"
    classifier = as_classifier(model, (12, 10))
    assert classifier.image == (3, 12, 10)
    assert len(expose_norms(classifier)) == 1
    with pytest.raises(ZottaError, match=re.escape("12 x 10, not 9 x 9")):
        as_classifier(model, (9, 9))


def test_shared_models(shared_data: Path) -> None:
    for path, count in (
        ("deit-tiny/deit_tiny_fp32.onnx", 25),
        ("cifar10-rn26-gn/cifar10_rn26_gn.onnx", 25),
    ):
        assert len(check_exposed(onnx.load(shared_data / path))) == count
