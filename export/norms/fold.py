"""Fold BatchNorms into the convolutions before them, as most exporters do."""

import numpy as np
import onnx
from onnx import NodeProto, helper

from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute, free_name


def fold_batch_norms(model: onnx.ModelProto) -> int:
    """Change the model in place; the number of BatchNorms that are gone."""
    graph = Graph(model)
    norms = [node for node in graph.nodes if node.op_type == "BatchNormalization"]
    folded = [node for node in norms if _fold(graph, node)]
    graph.finish()
    return len(folded)


def _fold(graph: Graph, norm: NodeProto) -> bool:
    """conv(x) * f + shift - mean f, with f = scale / sqrt(variance + epsilon), as one Conv."""
    conv = graph.producer(norm.input[0], "Conv")
    numbers = [graph.constant(name) for name in norm.input[1:5]]
    if conv is None or len(graph.consumers[norm.input[0]]) > 1:
        return False
    weight = graph.constant(conv.input[1])
    bias = graph.constant(conv.input[2]) if len(conv.input) > 2 else np.zeros(1, np.float32)
    if weight is None or bias is None or any(number is None for number in numbers):
        return False
    scale, shift, mean, variance = (np.asarray(number, np.float64) for number in numbers)
    factor = scale / np.sqrt(variance + attribute(norm, "epsilon", 1e-5))
    shaped = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    graph.replace(conv, [])
    graph.replace(norm, [_conv(graph, conv, norm, shaped, shift + (bias - mean) * factor)])
    return True


def _conv(graph: Graph, conv: NodeProto, norm: NodeProto, weight: Array, bias: Array) -> NodeProto:
    parts = [f"{norm.output[0]}.folded.{part}" for part in ("weight", "bias")]
    names = [free_name(part, graph.names()) for part in parts]
    for name, value in zip(names, (weight, bias), strict=True):
        graph.add_constant(name, value.astype(np.float32))
    folded = helper.make_node("Conv", [conv.input[0], *names], [norm.output[0]], conv.name)
    folded.attribute.extend(conv.attribute)
    return folded
