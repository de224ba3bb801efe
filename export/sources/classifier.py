"""The standard form of a classifier: `image` [batch, ...] in, `logits` [batch, classes] out."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.sources.batch import free_batch
from zotta_edge.export.sources.half import to_single
from zotta_edge.export.sources.inputs import Layout, bind_inputs, declare_image, declared
from zotta_edge.export.sources.obstacles import refuse_unsuitable
from zotta_edge.export.sources.opset import with_opset
from zotta_edge.export.sources.qoperator import refuse_unknown, to_qdq
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute, free_name, opset
from zotta_edge.graph.shapes import BATCH, Shape, ShapeProbe, measure_shapes

Say = Callable[[str], None]

_OLDEST_OPSET = 11  # the first that every later step reads as it is
_LIFTED_OPSET = 13
_OUTPUTS = re.compile(rf"{EMBEDDING}|{LOGITS}|feature\.\d+")
_MAP = "logits.map"  # logits [batch, classes, 1, 1]
_RESHAPING = ("Identity", "Flatten", "Reshape", "Squeeze", "Cast")


@dataclass(frozen=True, eq=False)
class Classifier:
    """A classifier in the standard form, with its index and shapes."""

    graph: Graph = field(repr=False)
    layout: Layout
    channels: int
    height: int
    width: int
    classes: int
    shapes: dict[str, Shape] = field(repr=False)  # of every tensor
    half: bool = False  # the source rounds to 16 bits
    outputs: Mapping[str, Shape] = field(default_factory=dict)  # where there are no class scores

    @property
    def image(self) -> Shape:
        """Shape of one image."""
        plane = (self.height, self.width)
        return (self.channels, *plane) if self.layout == "NCHW" else (*plane, self.channels)


def as_classifier(
    model: onnx.ModelProto,
    size: tuple[int, int] | None = None,
    say: Say = lambda message: None,
    scores: bool = True,
) -> Classifier:
    """Check and rewrite `model` in place.

    Parameters
    ----------
    model
        A float network with one input, the images.
    size
        Height and width, where the model leaves them open.
    say
        Told of what had to be rewritten.
    scores
        False: its output is no class scores, although it looks like them. A network with several
        outputs, or one that is not [batch, classes], keeps its outputs as they are anyway.

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
    bind_inputs(model, {})
    refuse_unsuitable(model, size)
    if model.functions:
        _inline_functions(model)
    half = to_single(model)
    if half:
        say("the model is in 16-bit floats: it is exported from an fp32 copy")
    if opset(model) < _OLDEST_OPSET:
        say(f"the model has opset {opset(model)}: it is raised to {_LIFTED_OPSET}")
        model.CopyFrom(with_opset(model, _LIFTED_OPSET))
    layout, shape = declare_image(model, size)
    say(f"running it on images of {' x '.join(map(str, shape))} to learn the shapes inside")
    graph = Graph(model)
    _make_room(graph)
    graph.rename(model.graph.input[0].name, IMAGE)
    refuse_unknown(graph)
    scores = scores and _may_be_scores(model, shape)
    if scores:
        graph.rename(model.graph.output[0].name, LOGITS)
        _cut_softmax(graph)
    to_qdq(graph)
    graph.finish()
    free_batch(graph, shape)
    shapes = measure_shapes(model, IMAGE, shape)
    classes, outputs = 1, {} if scores else _own_outputs(model, shapes)
    if scores:
        classes = _classes(graph, shapes)
        _set_shape(model.graph.output[0], ["batch", classes])
    else:
        say(f"it gives no class scores: {', '.join(outputs)} are passed through as they are")
    channels, height, width = shape if layout == "NCHW" else (shape[2], *shape[:2])
    return Classifier(graph, layout, channels, height, width, classes, shapes, half, outputs)


def _may_be_scores(model: onnx.ModelProto, image: Shape) -> bool:
    """Whether the only output is [batch, classes] or [batch, classes, 1, 1]."""
    if len(model.graph.output) != 1:
        return False
    name, told = model.graph.output[0].name, declared(model.graph.output[0])
    if len(told) == 2 and told[1] > 1:  # `_classes` checks it
        return True
    axes = ShapeProbe(model, [name]).run(IMAGE, image, _first_batch(model))[name]
    return (len(axes) == 2 or (len(axes) == 4 and axes[2:] == (1, 1))) and axes[1] > 1


def _first_batch(model: onnx.ModelProto) -> int:
    return declared(model.graph.input[0])[0] or 1


def _own_outputs(model: onnx.ModelProto, shapes: dict[str, Shape]) -> dict[str, Shape]:
    """The axes of each output behind the batch's."""
    for value in model.graph.output:
        axes = shapes.get(value.name, ())
        if not axes or axes[0] != BATCH or value.type.tensor_type.elem_type != TensorProto.FLOAT:
            shown = ", ".join("batch" if size == BATCH else str(size) for size in axes)
            raise ZottaError(
                f"the output {value.name} [{shown}] is not one row of floats for each image: cut "
                "the graph before what makes it, such as a NonMaxSuppression, with "
                "onnx.utils.extract_model"
            )
        value.CopyFrom(
            helper.make_tensor_value_info(value.name, TensorProto.FLOAT, ["batch", *axes[1:]])
        )
    return {value.name: shapes[value.name][1:] for value in model.graph.output}


def _inline_functions(model: onnx.ModelProto) -> None:
    from onnx.inliner import inline_local_functions

    model.CopyFrom(inline_local_functions(model))


def _set_shape(value: onnx.ValueInfoProto, shape: list[int | str]) -> None:
    value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))


def _make_room(graph: Graph) -> None:
    """Rename source tensors whose names are needed for new outputs; an output's is kept longer."""
    outputs = {value.name for value in graph.model.graph.output}
    for name in graph.names():
        if _OUTPUTS.fullmatch(name):
            kind = "output" if name in outputs else "source"
            graph.rename(name, free_name(f"{name}.{kind}", graph.names()))


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
