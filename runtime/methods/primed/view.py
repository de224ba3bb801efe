"""A batch as the network is to see it."""

from collections.abc import Callable
from dataclasses import dataclass

from zotta_edge.format import Floats
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.watch.statistics import Doubles


@dataclass(frozen=True)
class View:
    """What a lens makes of a batch; images that have no move of their own leave the last two."""

    answer: Callable[[Floats], Outputs]  # at the stream's theta
    weights: Doubles  # how new each image is, 0 to 1
    begins_anew: bool = False  # what was learned so far is of another stream
    explained: Floats | float = 0.0  # of the features' offset, by the images' own moves, [n, D]
    deltas: Floats | float = 0.0  # of the embedding, by the images' own signatures, [n, E]
