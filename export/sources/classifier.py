"""The standard form of a classifier: `image` [batch, ...] in, `logits` [batch, classes] out."""

import re
from dataclasses import dataclass, field
from typing import Literal

import onnx
from onnx import TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.sources.batch import free_batch
from zotta_edge.export.sources.qoperator import to_qdq
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute, free_name, opset
from zotta_edge.graph.shapes import BATCH, Shape, measure_shapes

_OLDEST_OPSET = 11
_OUTPUTS = re.compile(rf"{EMBEDDING}|feature\.\d+")
_MAP = "logits.map"  # logits [batch, classes, 1, 1]
_RESHAPING = ("Identity", "Flatten", "Reshape", "Squeeze", "Cast")


@dataclass(frozen=True, eq=False)
class Classifier:
    """A classifier in the standard form, with its index and shapes."""

    graph: Graph = field(repr=False)
    layout: Literal["NCHW", "NHWC"]
    channels: int
    height: int
    width: int
    classes: int
    shapes: dict[str, Shape] = field(repr=False)  # of every tensor

    @property
    def image(self) -> Shape:
        """Shape of one image."""
        plane = (self.height, self.width)
        return (self.channels, *plane) if self.layout == "NCHW" else (*plane, self.channels)


def as_classifier(model: onnx.ModelProto, size: tuple[int, int] | None = None) -> Classifier:
    """Check and rewrite `model` in place.

    Parameters
    ----------
    model
        An fp32 classifier with one input, the images, and one output.
    size
        Height and width, where the model leaves them open.

    Raises
    ------
    ZottaError
        If the model is anything else, or mixes the samples of a batch.

    >>> image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    >>> nodes = [
    ...     helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
    ...     helper.make_node("Softmax", ["pooled"], ["y"], axis=1),
    ... ]
    >>> output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    >>> opsets = [helper.make_opsetid("", 17)]
    >>> graph = helper.make_graph(nodes, "tiny", [image], [output])
    >>> model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    >>> classifier = as_classifier(model, size=(8, 8))
    >>> classifier.classes, classifier.shapes["pooled"]
    (3, (-1, 3, 1, 1))
    >>> [value.name for value in (*model.graph.input, *model.graph.output)]
    ['image', 'logits']
    """
    _refuse_unsuitable(model)
    if model.functions:
        _inline_functions(model)
    _fix_initializers(model)
    layout, shape = _declare_image(model, size)
    graph = Graph(model)
    _make_room(graph)
    graph.rename(_image(model).name, IMAGE)
    graph.rename(_only_output(model), LOGITS)
    _cut_softmax(graph)
    to_qdq(graph)
    graph.finish()
    free_batch(graph, shape)
    shapes = measure_shapes(model, IMAGE, shape)
    classes = _classes(graph, shapes)
    _set_shape(model.graph.output[0], ["batch", classes])
    channels, height, width = shape if layout == "NCHW" else (shape[2], *shape[:2])
    return Classifier(graph, layout, channels, height, width, classes, shapes)


def _refuse_unsuitable(model: onnx.ModelProto) -> None:
    if any(entry.key == "zotta.format" for entry in model.metadata_props):
        raise ZottaError(
            "the model is already exported by zotta-edge: export the fp32 model it was made from"
        )
    if opset(model) < _OLDEST_OPSET:
        raise ZottaError(
            f"the model has opset {opset(model)}, {_OLDEST_OPSET} or later is needed: export it "
            "again with a later opset_version"
        )
    half = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    for tensor in model.graph.initializer:
        if tensor.data_type in half and tensor.dims:
            raise ZottaError(
                f"the model is not fp32 ({tensor.name} has 16 bits): export it in fp32"
            )


def _inline_functions(model: onnx.ModelProto) -> None:
    from onnx.inliner import inline_local_functions

    model.CopyFrom(inline_local_functions(model))


def _fix_initializers(model: onnx.ModelProto) -> None:
    """Make every initializer a constant; IR 3 listed them all as inputs, some tools still do."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for index in reversed(range(len(model.graph.input))):
        if model.graph.input[index].name in constants:
            del model.graph.input[index]
    model.ir_version = max(model.ir_version, 4)


def _image(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    inputs: list[onnx.ValueInfoProto] = list(model.graph.input)
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise ZottaError(
            f"an image classifier with one input is needed, the model has {len(inputs)} ({names})"
        )
    return inputs[0]


def _only_output(model: onnx.ModelProto) -> str:
    outputs: list[str] = [value.name for value in model.graph.output]
    if len(outputs) != 1:
        raise ZottaError(
            f"a classifier with one output is needed, the model has {len(outputs)} "
            f"({', '.join(outputs)}): export it again with the logits alone"
        )
    return outputs[0]


def _declare_image(
    model: onnx.ModelProto, size: tuple[int, int] | None
) -> tuple[Literal["NCHW", "NHWC"], Shape]:
    """Layout and shape of one image, which are declared on the input with a free batch."""
    image = _image(model)
    tensor = image.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]  # 0: left open
    if tensor.elem_type != TensorProto.FLOAT or len(dims) != 4:
        kind = TensorProto.DataType.Name(tensor.elem_type).lower()
        raise ZottaError(
            f"the input {image.name} must be float32 images [batch, channels, height, width], "
            f"it is {kind} of rank {len(dims)}"
        )
    channels_last = dims[3] in (1, 3) and dims[1] not in (1, 3)
    layout: Literal["NCHW", "NHWC"] = "NHWC" if channels_last else "NCHW"
    plane = slice(1, 3) if channels_last else slice(2, 4)
    if size and any(have not in (0, want) for have, want in zip(dims[plane], size, strict=True)):
        raise ZottaError(
            f"the model takes images of {dims[plane][0]} x {dims[plane][1]}, not "
            f"{size[0]} x {size[1]}: leave the size out"
        )
    if size:
        dims[plane] = size
    if not all(dims[1:]):
        raise ZottaError(
            f"the input {image.name} leaves its size open: give it with --size HxW"
            if dims[3 if channels_last else 1]
            else f"the input {image.name} does not declare its channels: export it again"
        )
    _set_shape(image, [dims[0] or "batch", *dims[1:]])
    return layout, tuple(dims[1:])


def _set_shape(value: onnx.ValueInfoProto, shape: list[int | str]) -> None:
    value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))


def _make_room(graph: Graph) -> None:
    """Rename source tensors whose names are needed for new outputs."""
    for name in graph.names():
        if _OUTPUTS.fullmatch(name):
            graph.rename(name, free_name(f"{name}.source", graph.names()))


def _cut_softmax(graph: Graph) -> None:
    """Remove a final Softmax, also one that only reshaping follows."""
    name, last = LOGITS, None
    while (node := graph.producer(name, *_RESHAPING, "Softmax", "LogSoftmax")) is not None:
        if node.op_type not in _RESHAPING:
            _bypass(graph, node, last)
            return
        if node.op_type == "Cast" and attribute(node, "to") != TensorProto.FLOAT:
            return
        name, last = node.input[0], node


def _bypass(graph: Graph, softmax: onnx.NodeProto, after: onnx.NodeProto | None) -> None:
    if after is not None:
        graph.set_input(after, 0, softmax.input[0])
    else:
        graph.replace(softmax, [helper.make_node("Identity", softmax.input[:1], [LOGITS])])


def _classes(graph: Graph, shapes: dict[str, Shape]) -> int:
    """Number of classes; [batch, classes, 1, 1], as all-convolutional nets end, is flattened."""
    shape = shapes.get(LOGITS, ())
    if len(shape) == 4 and shape[0] == BATCH and shape[2:] == (1, 1):
        graph.rename(LOGITS, _MAP)
        graph.model.graph.output[0].name = LOGITS
        graph.append(helper.make_node("Flatten", [_MAP], [LOGITS], name="logits.flatten"))
        graph.finish()
        shapes[_MAP], shape = shape, shape[:2]
        shapes[LOGITS] = shape
    if len(shape) != 2 or shape[0] != BATCH or shape[1] < 2:
        described = ", ".join("batch" if size < 0 else str(size) for size in shape)
        raise ZottaError(
            f"the model is no classifier: its output must be [batch, classes], it is [{described}]"
        )
    return shape[1]
