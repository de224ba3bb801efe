"""Give a model's graph an input that FOA can search: prompts for transformers, else a filter.

Prompts are tokens more, appended to the others after the position embedding. Where there is no
sequence of tokens to append to, the image passes through a filter that each channel has of its own.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

import numpy as np
from onnx import ModelProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, Layer, ModelInfo, from_metadata
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import made
from zotta_edge.graph.subgraph import build, live, parse
from zotta_edge.runtime.engine.cut import trace
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.sessions import ORT_ERRORS, open_session

PROMPTS, FILTER = "zotta.prompts", "zotta.filter"  # the input added, [1, 3, C] or [C, 1, 7, 7]
COUNT, SIDE = 3, 7  # tokens; pixels


def searchable(content: bytes, path: str) -> bytes:
    """The same model with one input more, PROMPTS or FILTER."""
    model = parse(content, path)
    info = from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    return _prompted(model, info, path) or _filtered(Graph(model), info)


def _prompted(model: ModelProto, info: ModelInfo, path: str) -> bytes | None:
    """None: the graph has no residual stream of tokens, or is tied to their number."""
    layers = [layer for layer in info.layers if layer.kind == "tokens" and layer.norms]
    changed = ModelProto()
    changed.CopyFrom(model)  # what does not work out leaves the model as it is
    graph = Graph(changed)
    stream = _stream(graph, layers[0]) if layers else None
    if stream is None:
        return None
    shapes, _ = trace(model, made(graph.nodes), [], path)
    tokens, channels = shapes[stream][1:]
    _append_tokens(graph, stream, channels)
    _lengthen_reshapes(graph, tokens)
    for output in (*(layer.feature for layer in info.layers), EMBEDDING):
        _leave_prompts_out(graph, output, shapes, tokens)
    content = _serialized(graph, info, PROMPTS)
    return content if _runs(content, info, channels) else None


def _stream(graph: Graph, layer: Layer) -> str | None:
    """What the layer's first norm reads, if something else reads it too: the residual stream."""
    affine = next(iter(graph.consumers.get(layer.norms[0].scale, ())), None)
    hat = graph.producers.get(affine.input[0]) if affine else None
    if hat is None or "LayerNorm" not in hat.op_type:
        return None
    stream = str(hat.input[0])
    return stream if len(graph.consumers[stream]) > 1 else None


def _append_tokens(graph: Graph, stream: str, channels: int) -> None:
    """stream <- [stream, prompts], the prompts the same for each sample."""
    longer, each, batch = (f"{PROMPTS}.{part}" for part in ("stream", "each", "batch"))
    graph.reroute(stream, longer)
    zero = graph.add_constant(f"{PROMPTS}.zero", np.zeros(1, np.int64))
    rest = graph.add_constant(f"{PROMPTS}.rest", np.array([COUNT, channels], np.int64))
    graph.insert_after(
        stream,
        [
            helper.make_node("Shape", [stream], [f"{batch}.all"]),
            helper.make_node("Gather", [f"{batch}.all", zero], [f"{batch}.size"]),
            helper.make_node("Concat", [f"{batch}.size", rest], [batch], axis=0),
            helper.make_node("Expand", [PROMPTS, batch], [each]),
            helper.make_node("Concat", [stream, each], [longer], axis=1),
        ],
    )
    _add_input(graph, PROMPTS, [1, COUNT, channels])


def _lengthen_reshapes(graph: Graph, tokens: int) -> None:
    """Shapes after the prompts that an exporter wrote down with the number of tokens in them."""
    after = graph.image_dependent(f"{PROMPTS}.stream")
    for node in graph.nodes:
        if node.op_type != "Reshape" or node.input[0] not in after:
            continue
        shape = graph.constant(node.input[1])
        if shape is not None and np.count_nonzero(shape == tokens) == 1:
            longer = np.where(shape == tokens, tokens + COUNT, shape)
            graph.set_input(node, 1, graph.add_constant(f"{PROMPTS}.{node.output[0]}", longer))


def _leave_prompts_out(
    graph: Graph, output: str, shapes: dict[str, tuple[int, ...]], tokens: int
) -> None:
    """Pooled features stay means over the image's own tokens, as the source's statistics are."""
    pool = graph.producers[output]
    shape = shapes.get(pool.input[0], ())
    if pool.op_type != "ReduceMean" or len(shape) != 3 or shape[1] != tokens:
        return
    ends = ((f"{PROMPTS}.start", 0), (f"{PROMPTS}.end", tokens), (f"{PROMPTS}.axis", 1))
    bounds = [graph.add_constant(name, np.array([at], np.int64)) for name, at in ends]
    own = f"{output}.own"
    graph.insert_before(pool, [helper.make_node("Slice", [pool.input[0], *bounds], [own])])
    graph.set_input(pool, 0, own)


def _filtered(graph: Graph, info: ModelInfo) -> bytes:
    """image <- image * filter, with zeros around; the layers read the result."""
    channels_last = info.preprocessing.layout == "NHWC"
    filtered, channels = f"{FILTER}.image", info.preprocessing.channels
    graph.reroute(IMAGE, filtered)
    entry, exit_ = (f"{FILTER}.in", f"{FILTER}.out") if channels_last else (IMAGE, filtered)
    margin = [SIDE // 2] * 4
    nodes = [helper.make_node("Conv", [entry, FILTER], [exit_], group=channels, pads=margin)]
    if channels_last:
        nodes.insert(0, helper.make_node("Transpose", [IMAGE], [entry], perm=[0, 3, 1, 2]))
        nodes.append(helper.make_node("Transpose", [exit_], [filtered], perm=[0, 2, 3, 1]))
    graph.insert_after(IMAGE, nodes)
    _add_input(graph, FILTER, [channels, 1, SIDE, SIDE])
    return _serialized(graph, info, FILTER)


def _add_input(graph: Graph, name: str, shape: list[int]) -> None:
    tensor = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph.model.graph.input.append(tensor)


def _serialized(graph: Graph, info: ModelInfo, more: str) -> bytes:
    """The affines become constants: ONNX Runtime fuses more where nothing may override them."""
    outputs = [LOGITS, *(layer.feature for layer in info.layers), EMBEDDING]
    changed = build(graph.model, live(graph.nodes, outputs), [IMAGE, more], outputs)
    return bytes(changed.SerializeToString(deterministic=True))


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
    shapes = [feature.shape for feature in features[:-1]]
    return logits.shape == (2, info.classes) and shapes == [(2, width) for width in wanted]
