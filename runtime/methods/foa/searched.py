"""A model whose input is searched: prompts of a transformer, or else a filter on the image."""

import numpy as np

from zotta_edge.format import IMAGE, Floats
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.watch.statistics import Doubles


class SearchedInput:
    """Passes with a candidate [d] in place of the input that `prompts.searchable` adds."""

    def __init__(self, engine: Engine, filter_step: float) -> None:
        self._engine, self._filter_step = engine, filter_step
        self._graph = engine.file.rewritten("search", _searchable)
        self._input = next(name for name in self._graph.inputs if name != IMAGE)
        self._shape = [int(size) for size in self._graph.shape(self._input)]
        self.parameters = int(np.prod(self._shape))
        self.name = self._input.removeprefix("zotta.")  # prompts or filter

    def __call__(self, images: Floats, candidate: Doubles) -> Outputs:
        self._engine.count(len(images))
        value = candidate.reshape(self._shape)
        if value.ndim == 4:  # a filter, [C, 1, 7, 7]; prompts are [1, 3, C]
            value = self._filter_step * value
            value[:, :, value.shape[2] // 2, value.shape[3] // 2] += 1.0  # zero: the image as it is
        return self._engine.gathered(
            self._graph({IMAGE: images, self._input: value.astype(np.float32)})
        )


def _searchable(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.methods.foa.prompts import searchable

    return searchable(content, path)
