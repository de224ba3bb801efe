"""BatchNorms whose statistics are a mixture of each image's own and of K components.

In units of `hat`, where the source has mean 0 and variance 1. The published cosine is between raw
means; the file has folded the source's into its weights, so here both are seen from the source.
Needs the onnx package, so it is imported only when there is a graph to rewrite.
"""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from zotta_edge.graph.index import Graph
from zotta_edge.runtime.methods.bn_adapt.batch_statistics import (
    EPSILON,
    BatchNorm,
    Shapes,
    Writer,
    rewritten,
)

MEANS, VARIANCES = "zotta.unmix.means", "zotta.unmix.variances"  # inputs [K, D], norms in turn
# Outputs [K, D]: the mean over the batch of p_k (x - x_k), where its images pull component k.
MEANS_PULL, VARIANCES_PULL = "zotta.unmix.means.pull", "zotta.unmix.variances.pull"
TEMPERATURE = 0.07
_TINY = 1e-12


def with_components(content: bytes, path: str) -> bytes:
    return rewritten(content, path, "unmix_tns", _mix_all)


def _mix_all(graph: Graph, norms: Sequence[BatchNorm]) -> tuple[Shapes, Shapes]:
    ends = np.cumsum([norm.channels for norm in norms])
    width = int(ends[-1])
    found = [_mix(graph, norm, int(end)) for norm, end in zip(norms, ends, strict=True)]
    for name, parts in zip((MEANS_PULL, VARIANCES_PULL), zip(*found, strict=True), strict=True):
        graph.append(helper.make_node("Concat", list(parts), [name], axis=1))
    shape: list[int | str] = ["components", width]
    return {MEANS: shape, VARIANCES: shape}, {MEANS_PULL: shape, VARIANCES_PULL: shape}


def _mix(graph: Graph, norm: BatchNorm, end: int) -> tuple[str, str]:
    """One norm; gives the pull on its components, [K, C] each."""
    write = Writer(graph, norm)
    one = write.constant(1.0)
    kept_mean, kept_variance = write.moments([axis for axis in norm.axes if axis > 0])
    flat = graph.add_constant("zotta.unmix.flat", np.array([0, -1], np.int64))
    mean, variance = (write.op("Reshape", x, flat) for x in (kept_mean, kept_variance))
    means, variances = (_own(write, graph, x, norm, end) for x in (MEANS, VARIANCES))

    alike = write.op("MatMul", _unit(write, mean), write.op("Transpose", _unit(write, means)))
    p = write.op("Softmax", write.op("Div", alike, write.constant(TEMPERATURE)), axis=1)
    rest = write.op("Sub", one, p)
    components = _rows(write, means)  # K

    # Means over k of (1 - p_k) x_k + p_k x, and of its square, without a [batch, K, C] tensor.
    mixed = _blend(write, rest, means, mean, components)
    within = _blend(write, rest, variances, variance, components)
    squares = write.op("MatMul", write.op("Mul", rest, rest), write.op("Mul", means, means))
    crossed = write.op("Mul", write.op("MatMul", write.op("Mul", rest, p), means), mean)
    own = write.op("ReduceSum", write.op("Mul", p, p), _axis(graph, 1), keepdims=1)
    own = write.op("Mul", own, write.op("Mul", mean, mean))
    total = write.op("Add", write.op("Add", squares, own), write.op("Add", crossed, crossed))
    between = write.op("Sub", write.op("Div", total, components), write.op("Mul", mixed, mixed))
    whole = write.op("Add", write.op("Add", within, between), write.constant(EPSILON))

    pulls = (_pull(write, p, means, mean), _pull(write, p, variances, variance))
    shape = write.op("Shape", kept_mean)
    write.normalized(write.op("Reshape", mixed, shape), write.op("Reshape", whole, shape))
    return pulls


def _pull(write: Writer, p: str, components: str, own: str) -> str:
    """Mean over the batch of p_k (x - x_k), [K, C]."""
    share = write.op("Transpose", write.mean(p, [0]))  # [K, 1]
    towards = write.op("Div", write.op("MatMul", write.op("Transpose", p), own), _rows(write, p))
    return write.op("Sub", towards, write.op("Mul", share, components))


def _blend(write: Writer, rest: str, components: str, own: str, count: str) -> str:
    """(sum_k (1 - p_k) x_k + x) / K: the p sum to 1."""
    return write.op("Div", write.op("Add", write.op("MatMul", rest, components), own), count)


def _own(write: Writer, graph: Graph, name: str, norm: BatchNorm, end: int) -> str:
    """The columns of one norm, [K, C]."""
    places = {"start": end - norm.channels, "end": end}
    bounds = [
        graph.add_constant(f"zotta.unmix.{what}.{at}", np.array([at], np.int64))
        for what, at in places.items()
    ]
    return write.op("Slice", name, *bounds, _axis(graph, 1))


def _unit(write: Writer, rows: str) -> str:
    squares = write.op("ReduceSum", write.op("Mul", rows, rows), _axis(write.graph, 1), keepdims=1)
    length = write.op("Sqrt", write.op("Add", squares, write.constant(_TINY)))
    return write.op("Div", rows, length)


def _rows(write: Writer, matrix: str) -> str:
    """How many it has, as a float [1]."""
    first, second = (_axis(write.graph, axis) for axis in (0, 1))
    count = write.op("Slice", write.op("Shape", matrix), first, second)
    return write.op("Cast", count, to=TensorProto.FLOAT)


def _axis(graph: Graph, axis: int) -> str:
    return graph.add_constant(f"zotta.unmix.axis{axis}", np.array([axis], np.int64))
