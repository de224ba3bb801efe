"""Single nodes: what they read and make, their attributes, and names for new tensors."""

import itertools
from collections.abc import Collection, Iterable
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, helper


def reads(node: NodeProto) -> list[str]:
    """Tensors that a node reads, including those that its branches take from outside.

    Parameters
    ----------
    node
        Any node; If, Loop and Scan hold whole graphs in their attributes.

    Returns
    -------
    list of str
        Each name once, inputs first. A name that a branch makes itself is not among them; one that
        it only hands on as its output is.

    >>> reads(helper.make_node("Clip", ["x", "", "high"], ["y"]))
    ['x', 'high']
    >>> branch = helper.make_graph(
    ...     [helper.make_node("Neg", ["outer"], ["inner"])],
    ...     "then", [], [helper.make_empty_tensor_value_info(name) for name in ("inner", "other")]
    ... )
    >>> reads(helper.make_node("If", ["condition"], ["y", "z"], then_branch=branch))
    ['condition', 'outer', 'other']
    """
    names = [name for name in node.input if name]
    for graph in branches(node):
        names += _captured(graph)
    return list(dict.fromkeys(names))


def _captured(graph: GraphProto) -> list[str]:
    """What a branch reads and does not make."""
    own = {tensor.name for tensor in (*graph.input, *graph.initializer)}
    own.update(made(graph.node))
    wanted = [name for node in graph.node for name in reads(node)]
    wanted += [tensor.name for tensor in graph.output]
    return [name for name in wanted if name not in own]


def branches(node: NodeProto) -> list[GraphProto]:
    """The graphs inside a node."""
    graphs: list[GraphProto] = []
    for item in node.attribute:
        graphs += [item.g] if item.HasField("g") else []
        graphs += item.graphs
    return graphs


def read_by(nodes: Iterable[NodeProto]) -> set[str]:
    """Tensors that any of these nodes reads."""
    return {name for node in nodes for name in reads(node)}


def made(nodes: Iterable[NodeProto]) -> list[str]:
    """Tensors that these nodes compute, in order."""
    return [name for node in nodes for name in node.output if name]


def rename_reads(node: NodeProto, old: str, new: str) -> None:
    """Let a node, and the branches inside it, read `new` where it read `old`."""
    for place, name in enumerate(node.input):
        if name == old:
            node.input[place] = new
    for graph in branches(node):
        for inner in graph.node:
            rename_reads(inner, old, new)
        if old not in made(graph.node):
            for tensor in graph.output:
                tensor.name = new if tensor.name == old else tensor.name


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute.

    >>> attribute(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), "perm")
    [1, 0]
    """
    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def opset(model: ModelProto) -> int:
    """Version of the standard operators; 0 if the model does not say."""
    standard = (item for item in model.opset_import if item.domain in ("", "ai.onnx"))
    return next((int(item.version) for item in standard), 0)


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, or `name_2`, `name_3` ... if that is taken.

    >>> free_name("norm", {"norm", "norm_2"})
    'norm_3'
    """
    numbered = (f"{name}_{count}" for count in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)
