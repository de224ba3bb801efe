"""Shapes of all tensors of a graph, measured by running it.

A run also covers operators that onnx's shape inference does not know, and two batch sizes tell
which axes follow the batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from zotta_edge.errors import ZottaError, one_line
from zotta_edge.graph.nodes import made
from zotta_edge.sessions import ORT_ERRORS, open_session

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

BATCH = -1  # an axis that is as long as the batch
VARYING = -2  # an axis that grows with the batch in another way, such as windows of a batch
_SHAPE_OF = "zotta.shape:"  # prefix of the outputs that tell a tensor's shape


class ShapeProbe:
    """A session that returns only shapes: the tensors themselves may be gigabytes.

    Parameters
    ----------
    model
        Any model that ONNX Runtime runs; it is the same afterwards.
    names
        The tensors to measure.
    outputs
        Tensors that become outputs of the session, so that it tells their element types.
    """

    def __init__(
        self, model: ModelProto, names: Sequence[str], outputs: Sequence[str] = ()
    ) -> None:
        self.names = names
        self.session = open_session(_with_shapes(model, names, outputs), optimize=False)
        self._types = {tensor.name: tensor.type for tensor in self.session.get_outputs()}

    def run(self, image: str, axes: Shape, batch: int) -> dict[str, Shape]:
        """Shapes for a batch of random images; `axes` is the shape of one image."""
        images = np.random.default_rng(0).standard_normal((batch, *axes), dtype=np.float32)
        try:
            shapes = self.session.run([_SHAPE_OF + name for name in self.names], {image: images})
        except ORT_ERRORS as error:
            raise ZottaError(
                f"the model does not run on a batch of {batch} images of shape {axes}: "
                f"{one_line(error)}"
            ) from error
        sizes = (tuple(map(int, shape)) for shape in shapes)
        return dict(zip(self.names, sizes, strict=True))

    def declaration(self, name: str, axes: Shape) -> ValueInfoProto:
        """One of `outputs`, for any batch; `axes` as `follow_batch` tells them."""
        kind = self._types[name].removeprefix("tensor(").removesuffix(")").upper()
        named: dict[int, str | None] = {BATCH: "batch", VARYING: None}
        shape = [named.get(axis, axis) for axis in axes]
        return helper.make_tensor_value_info(name, TensorProto.DataType.Value(kind), shape)


def measure_shapes(model: ModelProto, image: str, axes: Shape) -> dict[str, Shape]:
    """Every tensor's shape, from runs with one image and with two.

    Parameters
    ----------
    model
        A model with the single input `image` besides inputs that have default values.
    image
        Name of that input.
    axes
        Shape of one image.

    Returns
    -------
    dict of str to tuple of int
        `BATCH` stands for an axis that is as long as the batch, `VARYING` for one that changes with
        it in another way. A tensor whose rank changes is left out.

    >>> node = helper.make_node("Flatten", ["x"], ["y"])
    >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 3])
    >>> y = helper.make_empty_tensor_value_info("y")
    >>> opsets = [helper.make_opsetid("", 17)]
    >>> graph = helper.make_graph([node], "tiny", [x], [y])
    >>> measure_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8), "x", (2, 3))
    {'x': (-1, 2, 3), 'y': (-1, 6)}
    """
    probe = ShapeProbe(model, [image, *made(model.graph.node)])
    single, double = (probe.run(image, axes, batch) for batch in (1, 2))
    pairs = ((name, shape, double[name]) for name, shape in single.items())
    return {
        name: follow_batch(shape, other) for name, shape, other in pairs if len(shape) == len(other)
    }


def follow_batch(single: Shape, double: Shape) -> Shape:
    """The axes of a tensor for any batch, from its shapes for one image and for two.

    >>> follow_batch((1, 64, 3), (2, 128, 3))
    (-1, -2, 3)
    """
    return tuple(
        size if size == other else BATCH if (size, other) == (1, 2) else VARYING
        for size, other in zip(single, double, strict=True)
    )


def _with_shapes(model: ModelProto, names: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The model with the shape of each named tensor, and `outputs`, as outputs."""
    graph = model.graph
    nodes, count = len(graph.node), len(graph.output)
    graph.node.extend(helper.make_node("Shape", [name], [_SHAPE_OF + name]) for name in names)
    present = {tensor.name for tensor in (*graph.input, *graph.output)}
    more = [name for name in outputs if name not in present] + [_SHAPE_OF + name for name in names]
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in more)
    content: bytes = model.SerializeToString()
    del graph.node[nodes:], graph.output[count:]  # a copy would hold all weights twice
    return content
