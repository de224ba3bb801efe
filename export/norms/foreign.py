"""Norms as TensorFlow's and Keras's converters write them."""

from onnx import NodeProto

from zotta_edge.export.norms.decomposed import match_decomposed
from zotta_edge.export.norms.norm_form import Form, behind, find_affine
from zotta_edge.format import IMAGE
from zotta_edge.graph.index import Graph
from zotta_edge.graph.shapes import Shapes

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_OTHERS = ("Add", "Sum", "Concat", "MaxPool", "AveragePool", "Transpose", "Relu", "Clip")
_ELEMENTWISE = ("Mul", "Add", "Sub", "Div")
_MAP, _GROUPED_MAP = 4, 5  # axes


def match_scaled(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """A BatchNorm whose statistics were folded into its affine: x * scale + shift, one a channel.

    The same arithmetic on the image itself is its normalisation, and stays.
    """
    x = next((name for name in node.input if graph.constant(name) is None), "")
    before = graph.producers.get(x)
    if before is None or before.op_type not in (*_PRODUCTS, *_OTHERS):
        return None
    if before.op_type in _OTHERS and IMAGE in before.input:
        return None
    affine = find_affine(graph, shapes, x, 1)
    if affine is None or graph.producer(affine.output, "Add") is None:
        return None
    values = (affine.scale, affine.shift, affine.parameter)
    return Form("BatchNormalization", x, affine.output, x, affine.axis, *values)


def match_mean(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """LayerNorm and RMSNorm in arithmetic; a GroupNorm of [batch, H, W, group, C / group], too."""
    if len(shapes.get(node.input[0], ())) == _GROUPED_MAP:
        return _grouped(graph, shapes, node)
    return match_decomposed(graph, shapes, node)


def _grouped(graph: Graph, shapes: Shapes, node: NodeProto) -> Form | None:
    """Its own affine has two axes, so one of scale 1 and shift 0 goes behind the last Reshape."""
    if graph.producer(node.input[0], "Mul", "Pow") is None:  # only the mean of squares, not both
        return None
    joined = _reshape_behind(graph, node.output[0])
    if joined is None or len(shapes[joined.output[0]]) != _MAP:
        return None
    split, whole = shapes[node.input[0]], shapes[joined.output[0]]
    axis = 3 if split[3] * split[4] == whole[3] and split[1:3] == whole[1:3] else 1
    return behind(shapes, joined, axis, "GroupNormalization")


def _reshape_behind(graph: Graph, name: str) -> NodeProto | None:
    """The first Reshape after the arithmetic that reads `name`; a factor may be read twice."""
    seen, names = {name}, [name]
    for name in names:  # grows while it is read
        for node in graph.consumers.get(name, ()):
            if node.op_type == "Reshape":
                return node
            if node.op_type in (*_ELEMENTWISE, "Sqrt", "Reciprocal", "Pow", "Cast", "Identity"):
                names.extend(output for output in node.output if output not in seen)
                seen.update(node.output)
    return None
