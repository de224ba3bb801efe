"""What is known of a stream, in one immutable piece for calls that only read."""

from typing import NamedTuple

from zotta_edge.format import Floats
from zotta_edge.runtime.methods.primed.sameness import Common


class Published(NamedTuple):
    """All that an answer depends on; replaced as a whole after every batch."""

    theta: Floats
    delta: Floats  # offset of the embedding, [E]
    filter: str
    drift: float
    common: Common | None = None  # what images with filters of their own have in common
