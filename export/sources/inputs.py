"""The inputs of a graph: which one is the image, its layout and size, and values for the others."""

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.graph.nodes import attribute, read_by
from zotta_edge.graph.shapes import Shape

Layout = Literal["NCHW", "NHWC"]

_IMAGE_NAME = re.compile(r"image|img|pixel|picture", re.IGNORECASE)


def bind_inputs(model: onnx.ModelProto, values: Mapping[str, tuple[float, ...]]) -> None:
    """Leave only inputs that must be fed: defaults, `values` and inputs nobody reads are settled.

    Parameters
    ----------
    model
        Changed in place. IR 3 listed every initializer as an input, and some tools still do.
    values
        What the inputs besides the image are; one number fills an input of any shape.

    >>> nodes = [helper.make_node("Mul", ["x", "ratio"], ["y"])]
    >>> values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2]) for n in ("x", "y")]
    >>> ratio = helper.make_tensor_value_info("ratio", TensorProto.FLOAT, ["n", 2])
    >>> model = helper.make_model(helper.make_graph(nodes, "g", [values[0], ratio], [values[1]]))
    >>> bind_inputs(model, {"ratio": (0.5,)})
    >>> [value.name for value in model.graph.input], list(model.graph.initializer[0].dims)
    (['x'], [1, 2])
    """
    graph = model.graph
    _refuse_unknown(values, [value.name for value in graph.input])
    stored = {tensor.name: tensor for tensor in graph.initializer}
    read = read_by(graph.node)
    if not any(value.name in read for value in graph.input):
        read.update(value.name for value in graph.input)  # damaged: leave something to refuse
    for place, value in reversed(list(enumerate(graph.input))):
        if value.name in values:
            tensor = stored.get(value.name) or graph.initializer.add()
            tensor.CopyFrom(_filled(value, values[value.name]))
        if value.name in values or value.name in stored or value.name not in read:
            del graph.input[place]
    model.ir_version = max(model.ir_version, 4)


def _refuse_unknown(values: Mapping[str, tuple[float, ...]], names: list[str]) -> None:
    for name in values:
        if name not in names:
            raise ZottaError(f"--input {name}: the model's inputs are {', '.join(names)}")


def _filled(value: ValueInfoProto, numbers: tuple[float, ...]) -> TensorProto:
    """An open axis, such as the batch, gets the length 1 and broadcasts."""
    shape = tuple(size or 1 for size in declared(value))
    if len(numbers) not in (1, int(np.prod(shape))):
        raise ZottaError(
            f"--input {value.name} has {len(numbers)} values: one is needed, or "
            f"{int(np.prod(shape))} for {described(value)}"
        )
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    flat = np.broadcast_to(np.array(numbers), int(np.prod(shape)))
    return numpy_helper.from_array(flat.astype(dtype).reshape(shape), value.name)


def declared(value: ValueInfoProto) -> list[int]:
    """Its axes; 0 where one is left open, which Paddle writes as -1."""
    return [max(0, dim.dim_value) for dim in value.type.tensor_type.shape.dim]


def described(value: ValueInfoProto) -> str:
    kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"{kind} [{', '.join(str(size or '?') for size in declared(value))}]"


def input_obstacles(model: onnx.ModelProto, size: tuple[int, int] | None) -> list[str]:
    """What keeps `declare_image` from working."""
    image = find_image(model)
    if image is None:
        listed = ", ".join(f"{value.name} {described(value)}" for value in model.graph.input)
        return [
            f"it has {len(model.graph.input)} inputs ({listed or 'none'}) and none is plainly the "
            "image: settle the others with --input NAME=VALUE"
        ]
    obstacles = [
        f"{value.name} {described(value)} is an input besides the image {image.name}: give its "
        f"value with --input {value.name}=VALUE"
        for value in model.graph.input
        if value.name != image.name
    ]
    return obstacles + _image_obstacles(model, image, size)


def _image_obstacles(
    model: onnx.ModelProto, image: ValueInfoProto, size: tuple[int, int] | None
) -> list[str]:
    if not _may_be_image(image):
        return [
            f"the input {image.name} must be float images [batch, channels, height, width], it is "
            f"{described(image)}: export the network behind it alone"
        ]
    layout, (channels, *plane) = _axes(model, image)
    obstacles = []
    if size and any(have not in (0, want) for have, want in zip(plane, size, strict=True)):
        obstacles.append(
            f"the model takes images of {plane[0] or 'any'} x {plane[1] or 'any'}, not "
            f"{size[0]} x {size[1]}: leave the size out"
        )
    if not all(plane) and not size:
        obstacles.append(f"the input {image.name} leaves its size open: give it with --size HxW")
    if not channels:
        obstacles.append(f"the input {image.name} does not declare its channels: export it again")
    return obstacles


def find_image(model: onnx.ModelProto) -> ValueInfoProto | None:
    """The only input, the only one that looks like images, or the only such one named so."""
    inputs: list[ValueInfoProto] = list(model.graph.input)
    if len(inputs) < 2:
        return inputs[0] if inputs else None
    images = [value for value in inputs if _may_be_image(value)]
    named = [value for value in images if _IMAGE_NAME.search(value.name)]
    found = images if len(images) == 1 else named
    return found[0] if len(found) == 1 else None


def _may_be_image(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    if tensor.elem_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return False
    axes = declared(value)
    return not tensor.HasField("shape") or len(axes) == 4


def declare_image(model: onnx.ModelProto, size: tuple[int, int] | None) -> tuple[Layout, Shape]:
    """Layout and shape of one image, which are declared on the only input, open batch or not."""
    (image,) = model.graph.input
    layout, (channels, *plane) = _axes(model, image)
    height, width = size or plane
    shape = (channels, height, width) if layout == "NCHW" else (height, width, channels)
    batch = next(iter(declared(image)), 0) or "batch"
    image.CopyFrom(helper.make_tensor_value_info(image.name, TensorProto.FLOAT, [batch, *shape]))
    return layout, shape


def _axes(model: onnx.ModelProto, image: ValueInfoProto) -> tuple[Layout, tuple[int, int, int]]:
    """Channels, height and width; 0 where the graph leaves them open."""
    _, *axes = declared(image) or [0] * 4
    if axes[2] in (1, 3) and axes[0] not in (1, 3):
        return "NHWC", (axes[2], axes[0], axes[1])
    return "NCHW", (axes[0] or _channels_of_first_conv(model, image.name), axes[1], axes[2])


def _channels_of_first_conv(model: onnx.ModelProto, image: str) -> int:
    """0 if no Conv with stored weights reads the image itself."""
    weights = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Conv" and node.input[0] == image and node.input[1] in weights:
            return int(weights[node.input[1]][1]) * int(attribute(node, "group", 1))
    return 0
