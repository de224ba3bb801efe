"""16-bit models as fp32 ones: adaptation, its checks and the quantizers all work on fp32."""

from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from zotta_edge.graph.nodes import branches

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_TYPES = ("to", "dtype", "output_dtype")  # attributes that name an element type


def to_single(model: onnx.ModelProto) -> bool:
    """Turn every 16-bit float of `model` into a 32-bit one, in place.

    Returns
    -------
    bool
        Whether there was any.

    >>> from onnx import helper
    >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1])
    >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1])
    >>> graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "tiny", [x], [y])
    >>> model = helper.make_model(graph)
    >>> to_single(model), model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    (True, True)
    """
    return _widen_graph(model.graph)


def _widen_graph(graph: GraphProto) -> bool:
    tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    values = [*graph.input, *graph.output, *graph.value_info]
    found = [_widen_tensor(tensor) for tensor in tensors]
    found += [_widen_field(value.type.tensor_type, "elem_type") for value in values]
    found += [_widen_node(node) for node in graph.node]
    return any(found)


def _widen_node(node: NodeProto) -> bool:
    found = [_widen_graph(branch) for branch in branches(node)]
    for item in node.attribute:
        found += [_widen_tensor(tensor) for tensor in (item.t, *item.tensors)]
        found.append(item.name in _TYPES and _widen_field(item, "i"))
    return any(found)


def _widen_tensor(tensor: TensorProto) -> bool:
    if tensor.data_type not in _HALF:
        return False
    values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return True


def _widen_field(message: Any, field: str) -> bool:
    if getattr(message, field) not in _HALF:
        return False
    setattr(message, field, TensorProto.FLOAT)
    return True
