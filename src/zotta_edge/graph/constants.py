"""Constants: values stored in a graph, and nodes that compute with them alone."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from zotta_edge.graph.nodes import attribute

Array = NDArray[Any]

# Exporters that do not fold constants leave these between a parameter and its consumer.
FOLDABLE = {
    *("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "Expand"),
    *("Concat", "Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Neg", "DequantizeLinear"),
}


def constant_value(node: NodeProto) -> Array | None:
    """What a Constant node holds; None for text and sparse tensors.

    >>> constant_value(helper.make_node("Constant", [], ["axes"], value_ints=[0, 2]))
    array([0, 2])
    """
    for key in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        value = attribute(node, key)
        if value is not None:
            if isinstance(value, TensorProto):
                return numpy_helper.to_array(value)
            return np.asarray(value, np.float32 if "float" in key else np.int64)
    return None


def evaluate(node: NodeProto, inputs: Mapping[str, Array], opset: int) -> Array:
    """The first output of one node, by the meaning it has in this opset."""
    if node.op_type == "DequantizeLinear":  # the evaluator knows no earlier one
        opset = max(opset, 19)
    sources = [onnx.ValueInfoProto(name=name) for name in inputs]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    model = helper.make_model(
        helper.make_graph([node], "node", sources, results),
        opset_imports=[helper.make_opsetid("", opset)],
    )
    return cast(list[Array], ReferenceEvaluator(model).run([node.output[0]], dict(inputs)))[0]
