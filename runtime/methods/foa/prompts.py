"""Give a model's graph an input that FOA can search: prompts for transformers, else a filter.

Prompts are tokens more, appended to the others after the position embedding. Where there is no
sequence of tokens to append to, the image passes through a filter that each channel has of its own.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, Layer, ModelInfo, from_metadata
from zotta_edge.graph.subgraph import build, live, parse
from zotta_edge.runtime.engine.cut import trace
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.runtime.methods.foa.method import FILTER, PROMPTS
from zotta_edge.sessions import ORT_ERRORS, open_session

COUNT, SIDE = 3, 7  # tokens; pixels


def searchable(content: bytes, path: str) -> bytes:
    """The same model with one input more, PROMPTS or FILTER."""
    model = parse(content, path)
    info = from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    return _prompted(model, info, path) or _filtered(model, info)


def _prompted(model: ModelProto, info: ModelInfo, path: str) -> bytes | None:
    """None: the graph has no residual stream of tokens, or is tied to their number."""
    layers = [layer for layer in info.layers if layer.kind == "tokens" and layer.norms]
    stream = _stream(model, layers[0]) if layers else None
    if stream is None:
        return None
    names = [name for node in model.graph.node for name in node.output if name]
    shapes, _ = trace(model, names, [], path)
    tokens, channels = shapes[stream][1:]
    changed = ModelProto()
    changed.CopyFrom(model)
    _append_tokens(changed, stream, channels)
    _lengthen_reshapes(changed, tokens)
    for output in (*(layer.feature for layer in info.layers), EMBEDDING):
        _leave_prompts_out(changed, output, shapes, tokens)
    content = _serialized(changed, info, [PROMPTS])
    return content if _runs(content, info, channels) else None


def _stream(model: ModelProto, layer: Layer) -> str | None:
    """What the layer's first norm reads, if something else reads it too: the residual stream."""
    producers = {name: node for node in model.graph.node for name in node.output}
    nodes = model.graph.node
    affine = next((node for node in nodes if layer.norms[0].scale in node.input), None)
    hat = producers.get(affine.input[0]) if affine else None
    if hat is None or "LayerNorm" not in hat.op_type:
        return None
    stream = str(hat.input[0])
    return stream if sum(stream in node.input for node in nodes) > 1 else None


def _append_tokens(model: ModelProto, stream: str, channels: int) -> None:
    """stream <- [stream, prompts], the prompts the same for each sample."""
    longer, each, batch = (f"{PROMPTS}.{part}" for part in ("stream", "each", "batch"))
    for node in model.graph.node:
        _read(node, stream, longer)
    zero = _constant(model, f"{PROMPTS}.zero", np.zeros(1, np.int64))
    rest = _constant(model, f"{PROMPTS}.rest", np.array([COUNT, channels], np.int64))
    _insert_after(
        model,
        stream,
        [
            helper.make_node("Shape", [stream], [f"{batch}.all"]),
            helper.make_node("Gather", [f"{batch}.all", zero], [f"{batch}.size"]),
            helper.make_node("Concat", [f"{batch}.size", rest], [batch], axis=0),
            helper.make_node("Expand", [PROMPTS, batch], [each]),
            helper.make_node("Concat", [stream, each], [longer], axis=1),
        ],
    )
    shape: list[int | str] = [1, COUNT, channels]
    model.graph.input.append(helper.make_tensor_value_info(PROMPTS, TensorProto.FLOAT, shape))


def _lengthen_reshapes(model: ModelProto, tokens: int) -> None:
    """Shapes after the prompts that an exporter wrote down with the number of tokens in them."""
    constants, after = dict(_constants(model)), {f"{PROMPTS}.stream"}
    for node in model.graph.node:
        if after.isdisjoint(node.input):
            continue
        after.update(node.output)
        shape = constants.get(node.input[1]) if node.op_type == "Reshape" else None
        if shape is not None and np.count_nonzero(shape == tokens) == 1:
            longer = np.where(shape == tokens, tokens + COUNT, shape)
            node.input[1] = _constant(model, f"{PROMPTS}.{node.output[0]}", longer)


def _leave_prompts_out(
    model: ModelProto, output: str, shapes: dict[str, tuple[int, ...]], tokens: int
) -> None:
    """Pooled features stay means over the image's own tokens, as the source's statistics are."""
    pool = next(node for node in model.graph.node if output in node.output)
    shape = shapes.get(pool.input[0], ())
    if pool.op_type != "ReduceMean" or len(shape) != 3 or shape[1] != tokens:
        return
    ends = ((f"{PROMPTS}.start", 0), (f"{PROMPTS}.end", tokens), (f"{PROMPTS}.axis", 1))
    bounds = [_constant(model, name, np.array([at], np.int64)) for name, at in ends]
    own = f"{output}.own"
    cut = helper.make_node("Slice", [pool.input[0], *bounds], [own])
    pool.input[0] = own
    model.graph.node.insert(list(model.graph.node).index(pool), cut)


def _filtered(model: ModelProto, info: ModelInfo) -> bytes:
    """image <- image * filter, with zeros around; the layers read the result."""
    channels_last = info.preprocessing.layout == "NHWC"
    filtered, channels = f"{FILTER}.image", info.preprocessing.channels
    for node in model.graph.node:
        _read(node, IMAGE, filtered)
    entry, exit_ = (f"{FILTER}.in", f"{FILTER}.out") if channels_last else (IMAGE, filtered)
    margin = [SIDE // 2] * 4
    nodes = [helper.make_node("Conv", [entry, FILTER], [exit_], group=channels, pads=margin)]
    if channels_last:
        nodes.insert(0, helper.make_node("Transpose", [IMAGE], [entry], perm=[0, 3, 1, 2]))
        nodes.append(helper.make_node("Transpose", [exit_], [filtered], perm=[0, 2, 3, 1]))
    for index, node in enumerate(nodes):
        model.graph.node.insert(index, node)
    shape: list[int | str] = [channels, 1, SIDE, SIDE]
    model.graph.input.append(helper.make_tensor_value_info(FILTER, TensorProto.FLOAT, shape))
    return _serialized(model, info, [FILTER])


def _serialized(model: ModelProto, info: ModelInfo, more: list[str]) -> bytes:
    """The affines become constants: ONNX Runtime fuses more where nothing may override them."""
    outputs = [LOGITS, *(layer.feature for layer in info.layers), EMBEDDING]
    made = build(model, live(model.graph.node, outputs), [IMAGE, *more], outputs)
    return bytes(made.SerializeToString(deterministic=True))


def _runs(content: bytes, info: ModelInfo, channels: int) -> bool:
    """Whether the longer sequence passes, and comes out as one answer for each image."""
    images = np.zeros((2, *image_axes(info.preprocessing)), np.float32)
    prompts = np.ones((1, COUNT, channels), np.float32)
    try:
        session = open_session(content, optimize=False)
        logits, *features = session.run(None, {IMAGE: images, PROMPTS: prompts})
    except ZottaError:
        return False
    except ORT_ERRORS:
        return False
    wanted = [layer.channels for layer in info.layers]
    found = [feature.shape for feature in features[:-1]]
    return logits.shape == (2, info.classes) and found == [(2, width) for width in wanted]


def _read(node: NodeProto, name: str, instead: str) -> None:
    for index, read in enumerate(node.input):
        if read == name:
            node.input[index] = instead


def _insert_after(model: ModelProto, name: str, nodes: Iterable[NodeProto]) -> None:
    places = (i for i, node in enumerate(model.graph.node) if name in node.output)
    for place, node in enumerate(nodes, start=next(places, -1) + 1):
        model.graph.node.insert(place, node)


def _constant(model: ModelProto, name: str, value: NDArray[np.int64]) -> str:
    if name not in {tensor.name for tensor in model.graph.initializer}:
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def _constants(model: ModelProto) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Whole numbers that stand in the graph, by name."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.INT64:
            yield tensor.name, numpy_helper.to_array(tensor)
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = helper.get_attribute_value(node.attribute[0])
            array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
            if np.asarray(array).dtype == np.int64:
                yield node.output[0], np.asarray(array)
