"""Makes a batch size variable that the exporter wrote into the graph."""

import math

import numpy as np
import onnx
from onnx import NodeProto, helper

from zotta_edge.errors import ZottaError, one_line
from zotta_edge.format import IMAGE
from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute, made
from zotta_edge.graph.shapes import Shape, ShapeProbe, Shapes
from zotta_edge.sessions import open_session

_AGAIN = {  # producer -> how it leaves the batch open
    "pytorch": ', such as torch.onnx.export(..., dynamic_axes={"image": {0: "b"}})',
    "tf2onnx": ", such as an input_signature of tf.TensorSpec([None, ...])",
    "PaddlePaddle": ", such as paddle.static.InputSpec([None, ...])",
}
_TOLERANCE = 1e-3  # relative; a batch that mixes its samples is off by far more
_DYNAMIC_TOLERANCE = 0.1  # where the samples of a batch share the ranges of their 8-bit codes


def free_batch(graph: Graph, image: Shape) -> None:
    """Make the first axis of `image` variable, or raise an error if the graph does not allow it."""
    model = graph.model
    dimension = model.graph.input[0].type.tensor_type.shape.dim[0]
    fixed = dimension.dim_value
    if not fixed:
        return
    pixels = np.random.default_rng(0).standard_normal((2 * fixed, *image), dtype=np.float32)
    halves = (pixels[:fixed], pixels[fixed:])
    session = open_session(model.SerializeToString())
    expected = np.concatenate([_flat(session.run(None, {IMAGE: half})) for half in halves])
    probe = ShapeProbe(model, [IMAGE, *made(graph.nodes)])
    _rewrite(graph, probe.run(IMAGE, image, fixed))
    dimension.dim_param = "batch"
    _declare_output_batch(model)
    dynamic = any(node.op_type == "DynamicQuantizeLinear" for node in graph.nodes)
    _check(model, pixels, expected, _DYNAMIC_TOLERANCE if dynamic else _TOLERANCE)


def _check(model: onnx.ModelProto, pixels: Array, expected: Array, tolerance: float) -> None:
    try:
        answers = _flat(open_session(model.SerializeToString()).run(None, {IMAGE: pixels}))
        same = answers.shape == expected.shape and np.allclose(
            answers, expected, rtol=tolerance, atol=tolerance * float(np.abs(expected).max())
        )
        reason = "the samples of a larger batch would mix"
    except Exception as error:
        same, reason = False, one_line(error)
    if not same:
        raise ZottaError(
            f"the batch size {len(pixels) // 2} is fixed inside the graph ({reason}): export it "
            f"again with a dynamic batch axis{_AGAIN.get(model.producer_name, '')}"
        )


def _flat(answers: list[Array]) -> Array:
    """All outputs, one row a sample."""
    return np.concatenate([answer.reshape(len(answer), -1) for answer in answers], axis=1)


def _declare_output_batch(model: onnx.ModelProto) -> None:
    for value in model.graph.output:
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _rewrite(graph: Graph, shapes: Shapes) -> None:
    dependent = graph.image_dependent(IMAGE)
    places = _batch_places(graph, shapes, dependent)
    for node in list(graph.nodes):
        data = [name for name in node.input if name in places]
        if not data:
            continue
        if node.op_type == "Reshape" and graph.constant(node.input[1]) is not None:
            _free_reshape(graph, node, shapes[node.output[0]], places[node.input[0]])
        elif node.op_type == "Concat" and len(data) < len(node.input):
            _free_concat(graph, node, dependent, shapes[data[0]], places[data[0]])
    graph.finish()


def _batch_places(graph: Graph, shapes: Shapes, dependent: set[str]) -> dict[str, int]:
    """Product of the axes before the batch, for each tensor.

    Attention may move the batch behind the tokens and join it with them: [token * batch, channel].
    """
    places = {IMAGE: 1}
    for node in graph.nodes:
        source = next((name for name in node.input if name in places), None)
        if source is not None and node.op_type not in ("Shape", "Size"):
            for name in node.output:
                if name in dependent:
                    places[name] = _place(node, places[source], shapes[source], shapes[name])
    return places


def _place(node: NodeProto, place: int, before: Shape, after: Shape) -> int:
    if node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return place
    axis = _axis(place, before)
    if node.op_type == "Transpose":
        axis = list(attribute(node, "perm", range(len(before))[::-1])).index(axis)
    elif node.op_type == "Gather" and len(after) < len(before):
        axis -= attribute(node, "axis", 0) % len(before) < axis
    else:
        axis += max(0, len(after) - len(before))  # broadcasting aligns shapes at their ends
    return math.prod(after[:axis])


def _axis(place: int, shape: Shape) -> int:
    return next((axis for axis in range(len(shape)) if math.prod(shape[:axis]) == place), 0)


def _free_reshape(graph: Graph, node: NodeProto, shape: Shape, place: int) -> None:
    """The batch axis becomes -1, all others explicit."""
    target = list(shape)
    target[0 if len(shape) == 2 else _axis(place, shape)] = -1
    shape_name = graph.add_constant(f"{node.output[0]}.shape", np.array(target, np.int64))
    graph.set_input(node, 1, shape_name)


def _free_concat(
    graph: Graph, node: NodeProto, dependent: set[str], shape: Shape, place: int
) -> None:
    """Repeat what is the same for all samples, such as a class token, over the batch."""
    data = next(name for name in node.input if name in dependent)
    axis, rank = _axis(place, shape), len(shape)
    prefix = f"{node.output[0]}.batch"
    start = graph.add_constant(f"{prefix}.start", np.array([axis]))
    end = graph.add_constant(f"{prefix}.end", np.array([axis + 1]))
    ones = [
        graph.add_constant(f"zotta.int.ones.{n}", np.ones(n, np.int64))
        for n in (axis, rank - axis - 1)
    ]
    before = [
        helper.make_node("Shape", [data], [f"{prefix}.all"]),
        helper.make_node("Slice", [f"{prefix}.all", start, end], [f"{prefix}.size"]),
        helper.make_node("Concat", [ones[0], f"{prefix}.size", ones[1]], [prefix], axis=0),
    ]
    for index, name in enumerate(node.input):
        if name not in dependent:
            repeated = f"{prefix}.input{index}"
            before.append(helper.make_node("Expand", [name, prefix], [repeated]))
            graph.set_input(node, index, repeated)
    graph.insert_before(node, before)
