"""Shapes of all tensors inside a model, found by running it.

Running also covers operators that onnx's own shape inference does not know, and two batch sizes
tell which axes follow the batch. Imported by `cut` alone, because it needs the onnx package.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE, Floats
from zotta_edge.runtime.engine.cost_model import Shape
from zotta_edge.runtime.engine.session import ORT_ERRORS, image_axes, open_session, session_info

_SHAPE_OF = "zotta.shape:"  # prefix of the outputs that tell a tensor's shape


@dataclass(frozen=True)
class Tensors:
    """What a trial run shows."""

    shapes: dict[str, Shape]  # of every tensor, for a batch of one
    declared: dict[str, ValueInfoProto]  # of the tensors asked for, for any batch


def trace(model: ModelProto, names: Sequence[str], asked: Sequence[str], path: str) -> Tensors:
    """Run the model on one and on two blank images; its interface is checked on the way."""
    session = open_session(_with_shapes(model, names, asked), optimize=False)
    axes = image_axes(session_info(session, path).preprocessing)
    try:
        one, two = (_run(session, names, np.zeros((n, *axes), np.float32)) for n in (1, 2))
    except ORT_ERRORS as error:
        detail = " ".join(str(error).split())[:300]
        raise ZottaError(f"{path} does not run on a batch of two images ({detail})") from error
    types = {tensor.name: tensor.type for tensor in session.get_outputs()}
    declared = {
        name: helper.make_tensor_value_info(
            name, _element(types[name]), _axes(one[name], two[name])
        )
        for name in asked
        if name != IMAGE
    }
    return Tensors(one, declared)


def _with_shapes(model: ModelProto, names: Sequence[str], asked: Collection[str]) -> bytes:
    """The model with the shape of each named tensor, and the tensors asked for, as outputs."""
    graph = model.graph
    nodes, outputs = len(graph.node), len(graph.output)
    graph.node.extend(helper.make_node("Shape", [name], [_SHAPE_OF + name]) for name in names)
    present = {tensor.name for tensor in graph.output} | {IMAGE}
    more = [name for name in asked if name not in present] + [_SHAPE_OF + name for name in names]
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in more)
    content: bytes = model.SerializeToString()
    del graph.node[nodes:], graph.output[outputs:]  # a copy would hold all weights twice
    return content


def _run(session: Any, names: Sequence[str], images: Floats) -> dict[str, Shape]:
    shapes = session.run([_SHAPE_OF + name for name in names], {IMAGE: images})
    return {name: tuple(map(int, shape)) for name, shape in zip(names, shapes, strict=True)}


def _element(kind: str) -> int:
    """tensor(float) -> TensorProto.FLOAT."""
    return int(TensorProto.DataType.Value(kind.removeprefix("tensor(").removesuffix(")").upper()))


def _axes(one: Shape, two: Shape) -> list[int | str | None]:
    """Axes that do not change with the batch are fixed; those as long as the batch are named so."""
    return [
        a if a == b else "batch" if (a, b) == (1, 2) else None
        for a, b in zip(one, two, strict=True)
    ]
