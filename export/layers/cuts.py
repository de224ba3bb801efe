"""Cut tensors: those through which every path from the image to the logits passes."""

import math
from collections import Counter
from collections.abc import Sequence

from onnx import NodeProto

from zotta_edge.export.norms.expose import ExposedNorm
from zotta_edge.format import IMAGE, LOGITS, Kind
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import attribute
from zotta_edge.graph.shapes import BATCH, Shape, Shapes

HEAVY = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention", "MultiHeadAttention"),
    *("ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits"),
    "QAttention",
)
_CHANNEL_FIRST = (
    *("Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool", "GlobalAveragePool"),
    *("BatchNormalization", "InstanceNormalization", "GroupNormalization"),
)
_MAKE_CODES = ("QuantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")
_END_CODES = ("DequantizeLinear", "Cast", "QAttention", "Shape")
_CHANNEL_LAST = ("MatMul", "MatMulInteger", "MatMulNBits", "LayerNormalization", "RMSNormalization")


class Cuts:
    """The cuts of a graph, and what lies between them; places count nodes in their order."""

    def __init__(
        self,
        graph: Graph,
        shapes: Shapes,
        norms: Sequence[ExposedNorm],
        outputs: Sequence[str] = (LOGITS,),
    ) -> None:
        self.graph, self.shapes, self.outputs = graph, shapes, list(outputs)
        self.ends = set(outputs) - {LOGITS}  # answers of a network without class scores
        self.dependent = graph.image_dependent(IMAGE)
        self._codes = _codes(graph)
        self.place = {name: place for place, node in enumerate(graph.nodes) for name in node.output}
        self._norm_kinds = {exposed.output: exposed.norm.kind for exposed in norms}
        bodies = {exposed.output: self._body(exposed) for exposed in norms}
        self.entry = {output: min(body) for output, body in bodies.items()}
        heavy = [place for place, node in enumerate(graph.nodes) if node.op_type in HEAVY]
        self.busy = sorted({*heavy, *(place for body in bodies.values() for place in body)})
        self.names = [name for name in self._cuts() if self.usable(name) and self._inside(name)]

    def _body(self, norm: ExposedNorm) -> set[int]:
        """Places of the nodes between a norm's input and its output."""
        inside = self.graph.reaching([norm.output], self.dependent - {norm.input})
        return {self.place[name] for name in inside if name in self.place}

    def _cuts(self) -> list[str]:
        """A tensor is a cut if, when it appears, no other tensor on the way is still needed."""
        way = self.graph.reaching(self.outputs, self.dependent)  # carry the image to the answers
        uses = Counter(
            name
            for node in self.graph.nodes
            if not way.isdisjoint(node.output)
            for name in set(node.input) & way
        )
        live = {IMAGE}
        cuts = []
        for node in self.graph.nodes:
            outputs = [name for name in node.output if name in way]
            for name in set(node.input) & way if outputs else ():
                uses[name] -= 1
                if not uses[name]:
                    live.discard(name)
            live.update(outputs)
            if not live.isdisjoint(self.ends):  # kept to the end: no cuts any more
                break
            if outputs and live == {outputs[0]}:
                cuts.append(outputs[0])
        return cuts

    def _inside(self, name: str) -> bool:
        """Not behind all products, where answers are only put together."""
        return not self.ends or self.count_heavy(self.place[name], math.inf) > 0

    def between(self, start: int, end: float) -> list[str]:
        """Cuts that appear at `start` or later, and before `end`."""
        return [name for name in self.names if start <= self.place[name] < end]

    def count_heavy(self, start: int, end: float) -> int:
        """Number of expensive or normalizing nodes after `start` and before `end`."""
        return sum(start < place < end for place in self.busy)

    def count(self, op: str, start: int, end: float) -> int:
        """Number of nodes of one type from `start` on, and before `end`."""
        nodes = self.graph.nodes
        return sum(nodes[place].op_type == op for place in range(start, int(min(end, len(nodes)))))

    def output_after(self, start: int, end: float) -> str | None:
        """The first cut from `start` to `end`, after any activations that follow it."""
        names = self.between(start, end)
        if not names:
            return None
        last = names[0]
        for name in names[1:]:
            quiet = self.count_heavy(self.place[last], self.place[name] + 1) == 0
            if not quiet or self.shapes[name] != self.shapes[names[0]]:
                break
            last = name
        return last

    def usable(self, name: str) -> bool:
        """One vector, token sequence or map for each sample, of fixed size."""
        shape = self.shapes.get(name, ())
        return (
            name not in self._codes
            and 2 <= len(shape) <= 4
            and shape[0] == BATCH
            and all(size > 0 for size in shape[1:])
        )

    def kind(self, name: str) -> Kind:
        """What the axes of a cut mean."""
        rank = len(self.shapes[name])
        if rank == 4:
            return self._layout(name)
        return "tokens" if rank == 3 else "vector"

    def _layout(self, name: str) -> Kind:
        """Channels first or last: the nearest node upstream that tells them apart."""
        names, seen = [name], {name}
        for name in names:  # grows while it is read: breadth first
            node = self.graph.producers.get(name)
            if node is None:
                continue
            told = self._norm_kinds.get(name) or _told_by(node, self.shapes.get(name, ()))
            if told in ("map", "nhwc"):
                return told
            fresh = [source for source in node.input if source in self.dependent - seen]
            seen.update(fresh)
            names.extend(fresh)
        return "map"


def _codes(graph: Graph) -> set[str]:
    """Tensors that hold 8-bit codes or integer sums, not numbers of the network."""
    codes: set[str] = set()
    for node in graph.nodes:
        reads_codes = bool(node.input) and node.input[0] in codes
        if node.op_type in _MAKE_CODES or (reads_codes and node.op_type not in _END_CODES):
            codes.add(node.output[0])
    return codes


def _told_by(node: NodeProto, shape: Shape) -> Kind | None:
    if node.op_type == "Transpose":
        perm = list(attribute(node, "perm", ()))
        layouts: dict[tuple[int, ...], Kind] = {(0, 3, 1, 2): "map", (0, 2, 3, 1): "nhwc"}
        return layouts.get(tuple(perm))
    if node.op_type in _CHANNEL_FIRST:
        return "map"
    return "nhwc" if node.op_type in _CHANNEL_LAST and len(shape) > 2 else None
