"""Subgraphs: the nodes that some tensors depend on, as separate models."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE
from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import made, read_by, reads
from zotta_edge.sessions import ORT_ERRORS, has_external_data, open_session

_MOST_NODES = 200  # a larger part is no single function


def parse(content: bytes, path: str) -> ModelProto:
    """Parse a file's content; `path` is for the message if it is damaged."""
    if has_external_data(content):
        raise ZottaError(f"{path} keeps its weights in other files: export it into a single file")
    try:
        return onnx.load_from_string(content)
    except DecodeError:
        raise ZottaError(
            f"{path} is not an ONNX model, or is damaged: copy or export it again"
        ) from None


def live(
    nodes: Sequence[NodeProto], outputs: Iterable[str], given: Collection[str] = ()
) -> list[NodeProto]:
    """The nodes that `outputs` depend on, given the tensors `given`.

    Parameters
    ----------
    nodes
        In topological order.
    outputs, given
        Names of tensors.

    >>> nodes = [helper.make_node(*node) for node in (
    ...     ("Neg", ["x"], ["a"]), ("Exp", ["a"], ["b"]), ("Abs", ["a"], ["c"]))]
    >>> [node.op_type for node in live(nodes, ["c"])]
    ['Neg', 'Abs']
    >>> [node.op_type for node in live(nodes, ["c"], given=["a"])]
    ['Abs']
    """
    needed, kept = set(outputs).difference(given), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(name for name in reads(node) if name not in given)
    return kept[::-1]


def build(
    model: ModelProto,
    nodes: Sequence[NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    declared: Mapping[str, ValueInfoProto] = MappingProxyType({}),
    constant: Sequence[NodeProto] = (),
) -> ModelProto:
    """A model made of some nodes of another.

    Parameters
    ----------
    model
        Where opsets, functions and weights come from.
    nodes
        In topological order.
    inputs, outputs
        Names of tensors; outputs that the nodes do not make are left out.
    declared
        Type and shape of those that are neither inputs nor outputs of `model`.
    constant
        Nodes that unpack weights; those that `nodes` need are included.
    """
    known = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    known.update(declared)
    needed = live(constant, read_by(nodes))
    stored, present = read_by([*needed, *nodes]).union(inputs), set(made(nodes))
    graph = helper.make_graph(
        [*needed, *nodes],
        model.graph.name,
        [known[name] for name in inputs],
        [known[name] for name in dict.fromkeys(outputs) if name in present],
        [tensor for tensor in model.graph.initializer if tensor.name in stored],
    )
    return helper.make_model(
        graph,
        ir_version=model.ir_version,
        opset_imports=model.opset_import,
        functions=model.functions,
    )


def between(model: ModelProto, entry: str, tensor: str) -> ModelProto:
    """The nodes from `entry` to `tensor`; `image` is an input too where it is still needed."""
    nodes = live(model.graph.node, [tensor], {IMAGE, entry})
    inputs = sorted({IMAGE, entry} & read_by(nodes))
    if tensor not in made(nodes) or not inputs:
        raise ZottaError(f"the graph has no tensor {tensor}: export it again")
    declared = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in {entry, tensor} - {IMAGE}
    }
    return build(model, nodes, inputs, [tensor], declared)


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a graph that is run alone to find out what it computes."""

    feeds: Mapping[str, Array]
    output: str


def run_parts(graph: Graph, parts: Sequence[Part]) -> list[Array | None]:
    """The output of each part; None where it depends on more than its feeds, or does not run.

    Equal tensors must be fed equal values. All parts share one session, unless one of them fails.
    """
    bodies = [_body(graph, part) for part in parts]
    good = [part for part, body in zip(parts, bodies, strict=True) if body is not None]
    chosen = {id(node) for body in bodies if body is not None for node in body}
    nodes = [node for node in graph.nodes if id(node) in chosen]
    values = _run(graph, nodes, good) if good else {}
    if values is None and len(good) > 1:
        return [value for part in parts for value in run_parts(graph, [part])]
    return [(values or {}).get(part.output) if part in good else None for part in parts]


def _body(graph: Graph, part: Part) -> list[NodeProto] | None:
    nodes = live(graph.nodes, [part.output], part.feeds)
    more = read_by(nodes) & graph.inputs - set(part.feeds)
    return None if more or len(nodes) > _MOST_NODES else nodes


def _run(graph: Graph, nodes: list[NodeProto], parts: Sequence[Part]) -> dict[str, Array] | None:
    feeds = {name: value for part in parts for name, value in part.feeds.items()}
    outputs = list(dict.fromkeys(part.output for part in parts))
    declared = {name: helper.make_empty_tensor_value_info(name) for name in outputs}
    declared |= {
        name: helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim
        )
        for name, value in feeds.items()
    }
    model = build(graph.model, nodes, list(feeds), outputs, declared)
    try:
        values = open_session(model.SerializeToString()).run(outputs, feeds)
    except ZottaError:
        return None
    except ORT_ERRORS:  # e.g. it only takes other shapes
        return None
    return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}
