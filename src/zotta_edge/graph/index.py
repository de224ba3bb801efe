"""A graph indexed by producers and consumers of its tensors, and edited through that index."""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.graph.constants import FOLDABLE, Array, constant_value, evaluate
from zotta_edge.graph.nodes import free_name, opset, reads, rename_reads


class Graph:
    """Index of a model's main graph.

    All edits go through it, and cost what they touch rather than another walk over the whole
    graph. The model itself changes in `finish`.

    Parameters
    ----------
    model
        Its nodes may stand in any order; the index holds them in topological order.

    Raises
    ------
    ZottaError
        If the nodes form a cycle.

    >>> from onnx import helper
    >>> nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["y"], ["z"])]
    >>> output = [helper.make_empty_tensor_value_info("z")]
    >>> graph = Graph(helper.make_model(helper.make_graph(nodes, "tiny", [], output)))
    >>> graph.producers["y"].op_type, [node.op_type for node in graph.consumers["y"]]
    ('Neg', ['Abs'])
    >>> graph.replace(graph.producers["y"], [helper.make_node("Exp", ["x"], ["y"])])
    >>> graph.finish()
    >>> [node.op_type for node in graph.model.graph.node]
    ['Exp', 'Abs']
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.opset = opset(model)
        self.nodes = _in_order(list(model.graph.node))
        self.producers: dict[str, NodeProto] = {}
        self.consumers: dict[str, list[NodeProto]] = defaultdict(list)
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._values: dict[str, Array | None] = {}
        for node in self.nodes:
            self._add(node)

    def _add(self, node: NodeProto) -> None:
        for name in node.output:
            if name:
                self.producers[name] = node
                self._values.pop(name, None)
        for name in reads(node):
            self.consumers[name].append(node)

    def _remove(self, node: NodeProto) -> None:
        for name in node.output:
            if self.producers.get(name) is node:
                del self.producers[name]
        for name in reads(node):
            self._forget_reader(name, node)

    def _forget_reader(self, name: str, node: NodeProto) -> None:
        self.consumers[name] = [other for other in self.consumers[name] if other is not node]

    @property
    def outputs(self) -> list[str]:
        return [value.name for value in self.model.graph.output]

    @property
    def inputs(self) -> set[str]:
        return {value.name for value in self.model.graph.input}

    def producer(self, name: str, *ops: str) -> NodeProto | None:
        """The node that computes `name`, provided it is one of `ops` (any, if none are given)."""
        node = self.producers.get(name)
        return node if node is not None and (not ops or node.op_type in ops) else None

    def single_consumer(self, name: str, *ops: str) -> NodeProto | None:
        """The only reader of `name`, provided it is one of `ops` and `name` is no output."""
        readers = self.consumers.get(name, [])
        if len(readers) != 1 or name in self.outputs or readers[0].op_type not in ops:
            return None
        return readers[0]

    def constant(self, name: str) -> Array | None:
        """The value of an initializer, a Constant node, or simple arithmetic on such."""
        if name not in self._values:
            self._values[name] = self._evaluate(name)
        return self._values[name]

    def _evaluate(self, name: str) -> Array | None:
        if name in self._initializers:
            return numpy_helper.to_array(self._initializers[name])
        node = self.producers.get(name)
        if node is None or node.op_type == "Constant":
            return None if node is None else constant_value(node)
        if node.op_type not in FOLDABLE or node.domain not in ("", "ai.onnx"):
            return None
        values = {source: self.constant(source) for source in node.input if source}
        inputs = {source: value for source, value in values.items() if value is not None}
        return evaluate(node, inputs, self.opset) if len(inputs) == len(values) else None

    def add_constant(self, name: str, value: Array) -> str:
        """An initializer; equal names mean equal values."""
        if name not in self._initializers:
            tensor = self.model.graph.initializer.add()
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(value, order="C"), name))
            self._initializers[name] = tensor
            self._values.pop(name, None)
        return name

    def names(self) -> set[str]:
        """Every tensor that has a name."""
        return self.inputs | set(self._initializers) | set(self.producers)

    def rename(self, old: str, new: str) -> None:
        """Give tensor `old` the name `new`; a tensor that already has it is renamed."""
        if old == new:
            return
        if new in self.names():
            self.rename(new, free_name(f"{new}.source", self.names()))
        graph = self.model.graph
        for value in [*graph.input, *graph.output, *graph.initializer]:
            value.name = new if value.name == old else value.name
        producer = self.producers.pop(old, None)
        if producer is not None:
            producer.output[list(producer.output).index(old)] = new
            self.producers[new] = producer
        self.reroute(old, new)
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._values = {}

    def set_input(self, node: NodeProto, place: int, name: str) -> None:
        """Let a node of the graph read another tensor."""
        before = node.input[place]
        node.input[place] = name
        if before not in reads(node):
            self._forget_reader(before, node)
        if not any(other is node for other in self.consumers[name]):
            self.consumers[name].append(node)

    def replace(self, old: NodeProto, new: Sequence[NodeProto]) -> None:
        """Put the nodes `new` in the place of `old`; what this leaves unused goes in `finish`."""
        place = self._place(old)
        self._remove(old)
        self.nodes[place : place + 1] = new
        for node in new:
            self._add(node)

    def insert_before(self, node: NodeProto, new: Sequence[NodeProto]) -> None:
        """Put the nodes `new` before `node`."""
        place = self._place(node)
        self.nodes[place:place] = new
        for added in new:
            self._add(added)

    def insert_after(self, name: str, new: Sequence[NodeProto]) -> None:
        """Put the nodes `new` right behind the one that makes `name`; first, if none does."""
        maker = self.producers.get(name)
        place = 0 if maker is None else self._place(maker) + 1
        self.nodes[place:place] = new
        for added in new:
            self._add(added)

    def reroute(self, old: str, new: str) -> None:
        """Let all nodes that read `old` read `new` instead."""
        readers = self.consumers.pop(old, [])
        for node in readers:
            rename_reads(node, old, new)
        self.consumers[new] += readers

    def append(self, node: NodeProto) -> None:
        """Put a node at the end."""
        self.nodes.append(node)
        self._add(node)

    def _place(self, node: NodeProto) -> int:
        # Not list.index, which compares whole messages.
        return next(place for place, other in enumerate(self.nodes) if other is node)

    def reaching(self, targets: Iterable[str], within: Container[str] | None = None) -> set[str]:
        """All tensors that `targets` are computed from, themselves included.

        `within`: only these tensors, and what is reached through them.
        """
        seen: set[str] = set()
        stack = list(targets)
        while stack:
            name = stack.pop()
            if name not in seen and (within is None or name in within):
                seen.add(name)
                if name in self.producers:
                    stack.extend(reads(self.producers[name]))
        return seen

    def image_dependent(self, image: str) -> set[str]:
        """Tensors that carry the image's content; its Shape and Size do not."""
        seen = {image}
        for node in self.nodes:
            if node.op_type not in ("Shape", "Size") and not seen.isdisjoint(reads(node)):
                seen.update(name for name in node.output if name)
        return seen

    def finish(self) -> None:
        """Write the nodes back in order, without dead nodes, constants and stale shapes."""
        needed = self.reaching(self.outputs)
        for node in self.nodes:
            if needed.isdisjoint(node.output):
                self._remove(node)
        self.nodes = [node for node in self.nodes if not needed.isdisjoint(node.output)]
        graph = self.model.graph
        del graph.node[:]
        graph.node.extend(self.nodes)
        for place in reversed(range(len(graph.initializer))):
            if graph.initializer[place].name not in needed:
                del graph.initializer[place]
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._values = {}
        del graph.value_info[:]
        del graph.quantization_annotation[:]


def _in_order(nodes: list[NodeProto]) -> list[NodeProto]:
    """The nodes in topological order; a file may hold them in any, but not in a circle."""
    places = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    sources = {
        place: [places[name] for name in reads(node) if name in places]
        for place, node in enumerate(nodes)
    }
    if all(before < place for place, befores in sources.items() for before in befores):
        return nodes
    try:
        return [nodes[place] for place in TopologicalSorter(sources).static_order()]
    except CycleError as error:
        raise ZottaError("the model's graph has a cycle: the file is damaged") from error
