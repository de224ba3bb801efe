"""An ONNX graph as producers and consumers, with constants evaluated."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from zotta_edge.errors import ZottaError

Array = NDArray[Any]

# Exporters that do not fold constants leave these between a parameter and its consumer.
_FOLDABLE = {
    *("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "Expand"),
    *("Concat", "Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Neg"),
}


class Graph:
    """Index of a model's main graph. Editing goes through it, so that the index stays true."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._values: dict[str, Array | None] = {}
        self._index(_in_order(list(model.graph.node)))

    def _index(self, nodes: list[NodeProto]) -> None:
        self.nodes = nodes
        self.producers = {name: node for node in nodes for name in node.output if name}
        self.consumers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in nodes:
            for name in dict.fromkeys(_reads(node)):
                self.consumers[name].append(node)
        self.outputs = [value.name for value in self.model.graph.output]

    @property
    def opset(self) -> int:
        return next((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), 0)

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
        if node is None:
            return None
        if node.op_type == "Constant":
            return _constant_value(node)
        if node.op_type not in _FOLDABLE or node.domain not in ("", "ai.onnx"):
            return None
        inputs = {source: self.constant(source) for source in node.input if source}
        if any(value is None for value in inputs.values()):
            return None
        # The evaluator takes the opset's meaning of the node: axes moved from attribute to input.
        opset = helper.make_opsetid("", self.opset)
        evaluator = ReferenceEvaluator(_one_node_model(node, opset))
        return cast(list[Array], evaluator.run([name], inputs))[0]

    def add_constant(self, name: str, value: Array) -> str:
        """An initializer; equal names mean equal values."""
        if name not in self._initializers:
            tensor = self.model.graph.initializer.add()
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(value, order="C"), name))
            self._initializers[name] = tensor
            self._values.pop(name, None)
        return name

    def names(self) -> set[str]:
        inputs = {value.name for value in self.model.graph.input}
        return inputs | set(self._initializers) | set(self.producers)

    def rename(self, old: str, new: str) -> None:
        """Give tensor `old` the name `new`; a tensor that already has it makes room."""
        if old == new:
            return
        if new in self.names():
            self.rename(new, free_name(f"{new}.source", self.names()))
        graph = self.model.graph
        for value in [*graph.input, *graph.output, *graph.initializer]:
            value.name = new if value.name == old else value.name
        for node in self.nodes:
            for field in (node.input, node.output):
                for index, name in enumerate(field):
                    if name == old:
                        field[index] = new
            _rename_in_subgraphs(node, old, new)
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._values = {}
        self._index(self.nodes)

    def replace(self, old: NodeProto, new: list[NodeProto]) -> None:
        """Put the nodes `new` in the place of `old`; what this leaves unused goes in `finish`."""
        place = next(index for index, node in enumerate(self.nodes) if node is old)
        self._index(self.nodes[:place] + new + self.nodes[place + 1 :])

    def append(self, node: NodeProto) -> None:
        self._index([*self.nodes, node])

    def reaching(self, targets: Iterable[str]) -> set[str]:
        """Names of all tensors that `targets` are computed from, themselves included."""
        seen: set[str] = set()
        stack = list(targets)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                if name in self.producers:
                    stack.extend(_reads(self.producers[name]))
        return seen

    def image_dependent(self, image: str) -> set[str]:
        """Tensors that carry the image's content; its Shape and Size do not."""
        seen = {image}
        for node in self.nodes:
            if node.op_type not in ("Shape", "Size") and not seen.isdisjoint(_reads(node)):
                seen.update(name for name in node.output if name)
        return seen

    def finish(self) -> None:
        """Write the nodes back in order, without dead nodes, constants and stale shapes."""
        needed = self.reaching(self.outputs)
        alive = [node for node in self.nodes if any(name in needed for name in node.output)]
        graph = self.model.graph
        del graph.node[:]
        graph.node.extend(alive)
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name not in needed:
                del self._initializers[graph.initializer[index].name]
                del graph.initializer[index]
        del graph.value_info[:]
        del graph.quantization_annotation[:]
        self._index(list(graph.node))


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def open_session(model: onnx.ModelProto, *, optimize: bool = True) -> Any:
    """A CPU session; what ONNX Runtime refuses becomes an error for people."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # it would print to the terminal and try the same again
        )
    except Exception as error:
        raise ZottaError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _in_order(nodes: list[NodeProto]) -> list[NodeProto]:
    """The nodes in topological order; a file may hold them in any, but not in a circle."""
    places = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    sources = {
        place: [places[name] for name in _reads(node) if name in places]
        for place, node in enumerate(nodes)
    }
    if all(before < place for place, befores in sources.items() for before in befores):
        return nodes
    try:
        return [nodes[place] for place in TopologicalSorter(sources).static_order()]
    except CycleError as error:
        raise ZottaError("the model's graph has a cycle: the file is damaged") from error


def _reads(node: NodeProto) -> list[str]:
    """Inputs of the node, those of its subgraphs (If, Loop) included."""
    names = [name for name in node.input if name]
    for item in node.attribute:
        for graph in [item.g, *item.graphs] if item.type in (5, 10) else []:
            names += [name for inner in graph.node for name in _reads(inner)]
    return names


def _rename_in_subgraphs(node: NodeProto, old: str, new: str) -> None:
    for item in node.attribute:
        for graph in [item.g, *item.graphs] if item.type in (5, 10) else []:
            for inner in graph.node:
                for index, name in enumerate(inner.input):
                    if name == old:
                        inner.input[index] = new
                _rename_in_subgraphs(inner, old, new)


def _constant_value(node: NodeProto) -> Array | None:
    for key in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        value = attribute(node, key)
        if value is not None:
            if isinstance(value, TensorProto):
                return numpy_helper.to_array(value)
            return np.asarray(value, np.float32 if "float" in key else np.int64)
    return None


def _one_node_model(node: NodeProto, opset: onnx.OperatorSetIdProto) -> onnx.ModelProto:
    sources = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    return helper.make_model(
        helper.make_graph([node], "one node", sources, results), opset_imports=[opset]
    )


def free_name(name: str, taken: set[str]) -> str:
    """`name`, or `name_2`, `name_3` ... if that is taken."""
    numbered = (f"{name}_{count}" for count in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)
