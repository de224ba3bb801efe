"""Self-attention, recognized by what it computes rather than by its nodes."""

from dataclasses import dataclass
from itertools import permutations
from typing import cast

import numpy as np
from onnx import NodeProto

from zotta_edge.format import IMAGE, Floats
from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.shapes import Shape, Shapes
from zotta_edge.graph.subgraph import Part, run_parts

_TOLERANCE = 1e-4  # largest difference from the formula, relative to the largest value
_BATCH = 2
_STEPS = 8  # nodes from the Softmax to the tensor that holds the result


@dataclass(frozen=True)
class Attention:
    """output = softmax(Q K^T / sqrt(d)) V for each head, with [Q K V] = x weight + bias."""

    x: str
    output: str
    name: str  # of the weight
    weight: Floats  # [channels in, 3 * channels out]: queries, keys, values
    bias: Floats
    heads: int


def find_attentions(graph: Graph, shapes: Shapes) -> list[Attention]:
    """Every attention of a transformer without masks, position biases or inner norms."""
    candidates = [
        orders
        for node in graph.nodes
        if node.op_type == "Softmax" and (orders := _candidates(graph, shapes, node))
    ]
    # Some exporters take the batch size from the image's Shape.
    image = np.zeros((_BATCH, *shapes[IMAGE][1:]), np.float32)
    parts = [
        Part({orders[0].x: _random(shapes[orders[0].x]), IMAGE: image}, orders[0].output)
        for orders in candidates
    ]
    results = zip(candidates, parts, run_parts(graph, parts), strict=True)
    right = (
        next((order for order in orders if _computes(order, part.feeds[order.x], value)), None)
        for orders, part, value in results
        if value is not None
    )
    return [attention for attention in right if attention is not None]


def _random(shape: Shape) -> Floats:
    return np.random.default_rng(0).standard_normal((_BATCH, *shape[1:]), dtype=np.float32)


def attend(x: Floats, attention: Attention) -> Floats:
    """The formula; x is [batch, token, channel]."""
    joined = x @ attention.weight + attention.bias
    batch, tokens, width = joined.shape
    size = width // 3 // attention.heads
    heads = joined.reshape(batch, tokens, 3, attention.heads, size).transpose(2, 0, 3, 1, 4)
    query, key, value = heads  # [batch, head, token, size]
    scores = np.exp(query @ key.swapaxes(2, 3) / np.sqrt(np.float32(size)))
    result: Floats = scores / scores.sum(-1, keepdims=True) @ value
    return result.swapaxes(1, 2).reshape(batch, tokens, width // 3)


def _candidates(graph: Graph, shapes: Shapes, softmax: NodeProto) -> list[Attention]:
    """One for each order in which three projections may be queries, keys and values."""
    path = _path(graph, softmax)
    output = path[-1] if path else ""
    projections = _projections(graph, output) if path else []
    inputs = {node.input[0] for node in projections}
    if len(projections) not in (1, 3) or len(inputs) != 1:
        return []
    x = inputs.pop()
    result = shapes.get(output, ())
    heads = next((shapes[name][1] for name in path if len(shapes.get(name, ())) == 4), 0)
    if heads < 1 or [len(result), len(shapes.get(x, ()))] != [3, 3] or result[2] % heads:
        return []
    orders = (
        Attention(x, output, order[0].input[1], *_joined(graph, order), heads)
        for order in permutations(projections)
    )
    return [attention for attention in orders if attention.weight.shape[1] == 3 * result[2]]


def _computes(attention: Attention, x: Array, result: Array) -> bool:
    """Whether the nodes, run on random numbers, gave what the formula gives."""
    expected = attend(x, attention)
    return result.shape == expected.shape and bool(
        np.abs(result - expected).max() <= _TOLERANCE * np.abs(expected).max()
    )


def _joined(graph: Graph, projections: tuple[NodeProto, ...]) -> tuple[Floats, Floats]:
    """Weights and biases side by side; a bias is what the only reader adds."""
    weights, biases = [], []
    for node in projections:
        weight = cast(Floats, graph.constant(node.input[1]))
        reader = graph.single_consumer(node.output[0], "Add")
        addends = [name for name in reader.input if name != node.output[0]] if reader else []
        bias = graph.constant(addends[0]) if addends else None
        weights.append(weight)
        biases.append(np.zeros(weight.shape[1], np.float32) if bias is None else bias.reshape(-1))
    return np.concatenate(weights, axis=1), np.concatenate(biases)


def _path(graph: Graph, softmax: NodeProto) -> list[str]:
    """The chain of single readers from the Softmax to the next projection; empty if it forks."""
    path = [str(softmax.output[0])]
    for _ in range(_STEPS):
        readers = graph.consumers.get(path[-1], [])
        if len(readers) != 1:
            return []
        if _is_projection(graph, readers[0]):
            return path
        path.append(str(readers[0].output[0]))
    return []


def _projections(graph: Graph, output: str) -> list[NodeProto]:
    """The nearest products with constant weights that `output` is computed from, in order."""
    nearest: set[str] = set()
    stack, seen = [output], set[str]()
    while stack:
        name = stack.pop()
        node = graph.producers.get(name)
        if node is None or name in seen or node.op_type == "Shape":
            continue
        seen.add(name)
        if _is_projection(graph, node):
            nearest.add(name)
        else:
            stack.extend(node.input)
    return [node for node in graph.nodes if node.output[0] in nearest]


def _is_projection(graph: Graph, node: NodeProto) -> bool:
    weight = graph.constant(node.input[1]) if node.op_type == "MatMul" else None
    return weight is not None and weight.ndim == 2
