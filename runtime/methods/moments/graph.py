"""A model that aligns its own channel moments: per-channel mean and spread, as the source has them.

At every site, for the running moments M of the stream with this batch in it,

    m = M_1,  v = M_2 - M_1^2,  d = log(v / v_S),  e = |(m - m_S) / sigma_S|^2 + |d|^2
    l = s max(0, 1 - noise E_S / e)          a share of what sampling and content do not explain
    y <- (y - m_S - l (m - m_S)) exp(-l d / 2) + m_S

which scale and shift of the norm take up. With l = 0 they are the source's, bit for bit.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.format import ModelInfo, from_metadata
from zotta_edge.format.moments import Site, SourceMoments, floored, least_variance
from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.subgraph import parse
from zotta_edge.runtime.engine.cut import Halves, halves
from zotta_edge.tensor_layouts import LAYOUTS

RUNNING = "zotta.moments.running"  # [1, 2 D]: first and second moments of each site in turn
KEEP = "zotta.moments.keep"  # [1]: share of the running moments
WEIGHTS = "zotta.moments.weights"  # [batch or 1, 1]: share of each image
NOISE = "zotta.moments.noise"  # [1]: variance of the mean, in units of one image's
INSTANCE = "zotta.moments.instance"  # output [batch, 2 D]: every image's own moments
FIRST = "zotta.moments.first"  # output [batch, 2 C]: those of the first site
WITH_BATCH = ".with_batch"  # how the name of a site's M ends, a sum of the batch and RUNNING
AT_SOURCE = 1e30  # a noise that leaves everything as it is
_MANY = 1024  # pixels of a map; of a larger one some rows tell the moments


def with_moments(content: bytes, path: str) -> Halves:
    """The model in two halves, of which the second takes and gives moments."""
    model = parse(content, path)
    info = from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    if info.moments is None:
        raise ZottaError(
            f"{path} does not hold its source's channel moments: run `zotta-edge calibrate {path} "
            "--source DIR --prime`, or use another method"
        )
    add_moments(model, info.moments, info)
    outputs = [*info.answers, INSTANCE, FIRST]  # pooled features are not looked at
    return halves(model, [RUNNING, KEEP, WEIGHTS, NOISE], outputs, path)


def add_moments(model: ModelProto, source: SourceMoments, info: ModelInfo) -> None:
    """Rewrite the graph; its new inputs have default values that change nothing."""
    graph = Graph(model)
    width = 2 * int(source.ends[-1])
    batch: list[int | str] = ["batch"]
    _add_input(graph, RUNNING, np.zeros((1, width), np.float32), [1, width])
    _add_input(graph, KEEP, np.ones(1, np.float32), [1])
    _add_input(graph, WEIGHTS, np.zeros((1, 1), np.float32), ["images", 1])
    _add_input(graph, NOISE, np.array([AT_SOURCE], np.float32), [1])
    writer = _Writer(graph, source, info)
    writer.write()
    for name, size in ((INSTANCE, width), (FIRST, 2 * source.sites[0].channels)):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [*batch, size])
        model.graph.output.append(value)
    graph.finish()
    Graph(model).finish()  # in order again: what reshapes a norm's scale may have come before it


def _add_input(graph: Graph, name: str, default: Array, shape: list[int | str]) -> None:
    value = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph.model.graph.input.append(value)
    graph.add_constant(name, default)


def prefix_of(site: Site) -> str:
    """How the names begin of all that is computed for a site."""
    return f"{site.tensor}.moments"


class _Writer:
    """Writes the equations above, a site after the other."""

    def __init__(self, graph: Graph, source: SourceMoments, info: ModelInfo) -> None:
        self._graph, self._source, self._info = graph, source, info
        self._nodes: list[NodeProto] = []
        self._prefix = ""

    def write(self) -> None:
        sites, source = self._source.sites, self._source
        self._prefix = "zotta.moments"
        kept = self._split(self._op("Mul", RUNNING, KEEP), [2 * site.channels for site in sites])
        energies = self._constant("energies", source.energy.reshape(1, -1))
        noises = self._split(self._op("Mul", NOISE, energies), [1] * len(sites))
        self._graph.insert_after(RUNNING, self._taken())
        means, variances = (np.split(x, source.ends[:-1]) for x in (source.mean, source.variance))
        instances = []
        for index, site in enumerate(sites):
            self._prefix = prefix_of(site)
            instances.append(self._instance(site))
            moments = means[index].reshape(1, -1), floored(variances[index]).reshape(1, -1)
            scale, shift = self._aligned(site, instances[-1], kept[index], noises[index], *moments)
            self._apply(site, scale, shift)
        self._graph.append(helper.make_node("Concat", instances, [INSTANCE], axis=1))
        self._graph.append(helper.make_node("Identity", [instances[0]], [FIRST]))

    def _instance(self, site: Site) -> str:
        """Mean and mean square of every image's channels, [batch, 2 C]."""
        axes, seen = list(LAYOUTS[site.kind].pooled_axes), site.tensor
        if len(axes) == 2 and site.positions > _MANY:
            seen = self._some_rows(seen, axes[0], 5 if site.positions > 4 * _MANY else 3)
        both = [seen, self._op("Mul", seen, seen)]  # ReduceSumSquare takes three times as long
        if axes:
            both = [self._reduced("ReduceMean", name, axes, False) for name in both]
        return self._concat(*both)

    def _some_rows(self, name: str, axis: int, step: int) -> str:
        """Every third or fifth row of a large map: in step with no pattern of two or eight."""
        values = {"start": 0, "end": 2**31 - 1, f"axis{axis}": axis, f"step{step}": step}
        inputs = [
            self._graph.add_constant(f"zotta.moments.rows.{key}", np.array([value], np.int64))
            for key, value in values.items()
        ]
        return self._op("Slice", name, *inputs)

    def _aligned(
        self, site: Site, instance: str, kept: str, noise: str, mean: Array, variance: Array
    ) -> tuple[str, str]:
        """The factor r and the offset o of y r + o, [1, C] each."""
        op, constant = self._op, self._constant
        m_s = constant("mean", mean)
        weighted = self._reduced("ReduceSum", op("Mul", instance, WEIGHTS), [0], True)
        seen = self._made("Add", [weighted, kept], f"{self._prefix}{WITH_BATCH}")
        m, squares = self._split(seen, [site.channels] * 2)
        v = op("Max", op("Sub", squares, op("Mul", m, m)), self._floor(variance))
        d = op("Log", op("Mul", v, constant("inverse", 1 / variance)))
        off = op("Sub", m, m_s)
        z = op("Mul", off, constant("unit", 1 / np.sqrt(variance)))
        e = self._reduced("ReduceSumSquare", self._concat(z, d), [1], True)
        one = constant("one", np.ones(1, np.float32))
        certain = op("Relu", op("Sub", one, op("Div", noise, e)))
        share_l = op("Mul", certain, constant("share", np.array([self._source.share], np.float32)))
        half = constant("half", np.array([-0.5], np.float32))
        r = op("Exp", op("Mul", op("Mul", share_l, half), d))
        centre = op("Add", m_s, op("Mul", share_l, off))
        return r, op("Sub", m_s, op("Mul", r, centre))

    def _floor(self, variance: Array) -> str:
        return self._constant("least", np.array([least_variance(variance)], np.float32))

    def _apply(self, site: Site, factor: str, offset: str) -> None:
        if site.norm:
            self._move_norm(site, factor, offset)
            return
        factor, offset = (self._shaped(x, site.affine_shape) for x in (factor, offset))
        output = f"{site.tensor}.aligned"
        product = self._made("Mul", [site.tensor, factor], f"{output}.product")
        added = self._made("Add", [product, offset], output)
        readers = list(self._graph.consumers[site.tensor])  # as before: none of the new nodes
        self._graph.insert_after(site.tensor, self._taken())
        self._let_read(readers, site.tensor, added)

    def _move_norm(self, site: Site, factor: str, offset: str) -> None:
        """scale <- scale r, shift <- shift + scale o."""
        norm = next(norm for norm in self._info.norms if norm.name == site.norm)
        readers = {name: list(self._graph.consumers[name]) for name in (norm.scale, norm.shift)}
        scale, shift = (self._shaped(name, (-1, norm.channels)) for name in readers)
        free = (-1, *norm.shape[1:])
        moved = {
            norm.scale: self._shaped(self._op("Mul", scale, factor), free),
            norm.shift: self._shaped(self._op("Add", shift, self._op("Mul", scale, offset)), free),
        }
        self._graph.insert_after(site.tensor, self._taken())
        for old, new in moved.items():
            self._let_read(readers[old], old, new)

    def _let_read(self, readers: list[NodeProto], old: str, new: str) -> None:
        for node in readers:
            for place, name in enumerate(node.input):
                if name == old:
                    self._graph.set_input(node, place, new)

    def _made(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def _op(self, op: str, *inputs: str) -> str:
        return self._made(op, list(inputs), self._name())

    def _name(self) -> str:
        return f"{self._prefix}.{len(self._nodes)}"

    def _concat(self, *inputs: str) -> str:
        return self._made("Concat", list(inputs), self._name(), axis=1)

    def _shaped(self, name: str, shape: tuple[int, ...]) -> str:
        target = self._graph.add_constant(
            "zotta.moments.shape." + ".".join(map(str, shape)), np.array(shape, np.int64)
        )
        return self._op("Reshape", name, target)

    def _reduced(self, op: str, name: str, axes: list[int], keep: bool) -> str:
        if self._graph.opset < (13 if op == "ReduceSum" else 18):
            return self._made(op, [name], self._name(), axes=axes, keepdims=int(keep))
        constant = self._graph.add_constant(
            "zotta.moments.axes." + ".".join(map(str, axes)), np.array(axes, np.int64)
        )
        return self._made(op, [name, constant], self._name(), keepdims=int(keep))

    def _split(self, name: str, sizes: list[int]) -> list[str]:
        if len(sizes) == 1:
            return [name]
        parts = [f"{self._name()}.{index}" for index in range(len(sizes))]
        if self._graph.opset < 13:
            node = helper.make_node("Split", [name], parts, axis=1, split=sizes)
        else:
            of = self._constant(f"sizes{len(self._nodes)}", np.array(sizes, np.int64))
            node = helper.make_node("Split", [name, of], parts, axis=1)
        self._nodes.append(node)
        return parts

    def _constant(self, name: str, value: Array) -> str:
        kind = value.astype(np.float32) if value.dtype.kind == "f" else value
        return self._graph.add_constant(f"{self._prefix}.{name}", kind)

    def _taken(self) -> list[NodeProto]:
        nodes, self._nodes = self._nodes, []
        return nodes
