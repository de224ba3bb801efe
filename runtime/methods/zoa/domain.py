"""Detect a change of domain: ZOA's test on the statistics of the first convolution."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import IMAGE, Floats
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.runtime.methods.zoa.settings import ZoaSettings
from zotta_edge.runtime.watch.statistics import Doubles

_MEAN, _SQUARE = "zotta.mean", "zotta.square"


class DomainChange:
    """Compares each window of the stream with a running mean of the ones before.

    The convolution runs once more for this, some 2 % of a pass.
    """

    def __init__(self, engine: Engine, settings: ZoaSettings) -> None:
        self._settings = settings
        self._graph = engine.file.rewritten("first convolution", _first_convolution)
        blank = np.zeros((1, *image_axes(engine.info.preprocessing)), np.float32)
        self._channels = self._moments(blank).shape[1]
        self.reset()

    def reset(self) -> None:
        self._sums: Doubles = np.zeros((2, self._channels))
        self._count = 0
        self._domain: Doubles = np.zeros((2, self._channels))  # mean and variance
        self._known = False

    def _moments(self, images: Floats) -> Doubles:
        """Sums of the first and second moment over the batch, [2, channel]."""
        moments = self._graph({IMAGE: images})
        both = np.stack([moments[_MEAN], moments[_SQUARE]])  # [2, batch, channel, 1, 1]
        sums: Doubles = both.sum(axis=(1, 3, 4), dtype=np.float64)
        return sums

    def observe(self, images: Floats) -> bool:
        """Whether a window that ends with these images is of another domain than those before."""
        self._sums = self._sums + self._moments(images)
        self._count += len(images)
        if self._count < self._settings.zoa_domain_window:
            return False
        mean, square = self._sums / self._count
        window = np.stack([mean, np.maximum(square - mean**2, 1e-8)])  # mean, variance
        self._sums, self._count = np.zeros_like(self._sums), 0
        threshold, memory = self._settings.zoa_domain_threshold, self._settings.zoa_domain_memory
        changed = self._known and divergence(self._domain, window) > threshold
        fresh = changed or not self._known
        self._domain = window if fresh else memory * self._domain + (1 - memory) * window
        self._known = True
        return changed

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            "sums": self._sums,
            "domain": self._domain,
            "count": np.array([self._count]),
            "known": np.array([self._known]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums, self._domain = state["sums"], state["domain"]
        self._count, self._known = int(state["count"][0]), bool(state["known"][0])


def divergence(a: Doubles, b: Doubles) -> float:
    """KL(a || b) + KL(b || a) of Gaussians, mean over channels; each is [2, channel].

    The logarithms of the variances cancel between the two sides.
    """
    (mean, variance), (mean_, variance_) = a, b
    apart = np.square(mean - mean_)
    both = (variance + apart) / variance_ + (variance_ + apart) / variance - 2
    return float(both.mean() / 2)


def _first_convolution(content: bytes, path: str) -> bytes:
    """From the image to the spatial mean of the first convolution's output, and of its square."""
    from onnx import TensorProto, helper

    from zotta_edge.graph.subgraph import build, live, parse

    model = parse(content, path)
    made = (node.output[0] for node in model.graph.node if node.op_type == "Conv")
    output = next(made, IMAGE)  # a network without any is judged by its pixels
    pool = [
        helper.make_node("Mul", [output, output], [f"{_SQUARE}.map"]),
        helper.make_node("GlobalAveragePool", [output], [_MEAN]),
        helper.make_node("GlobalAveragePool", [f"{_SQUARE}.map"], [_SQUARE]),
    ]
    nodes = [*live(model.graph.node, [output]), *pool]
    declared = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None, 1, 1])
        for name in (_MEAN, _SQUARE)
    }
    first = build(model, nodes, [IMAGE], [_MEAN, _SQUARE], declared)
    return bytes(first.SerializeToString(deterministic=True))
