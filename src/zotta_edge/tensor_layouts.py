"""How a tensor of features lies, by kind. A new layout is a line here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["tokens", "map", "nhwc", "vector"]


@dataclass(frozen=True)
class Layout:
    """A tensor whose first axis is the batch.

    >>> LAYOUTS["map"].affine_shape(64), LAYOUTS["map"].pooled_axes
    ((1, 64, 1, 1), (2, 3))
    """

    rank: int
    channel_axis: int

    def affine_shape(self, channels: int) -> tuple[int, ...]:
        """The shape of a scale or shift: it broadcasts over the tensor."""
        return tuple(channels if axis == self.channel_axis else 1 for axis in range(self.rank))

    @property
    def pooled_axes(self) -> tuple[int, ...]:
        """The tokens or pixels that a pooled feature is the mean over."""
        return tuple(axis for axis in range(1, self.rank) if axis != self.channel_axis)


LAYOUTS: Mapping[Kind, Layout] = {
    "tokens": Layout(rank=3, channel_axis=2),  # [batch, token, channel]
    "map": Layout(rank=4, channel_axis=1),  # [batch, channel, height, width]
    "nhwc": Layout(rank=4, channel_axis=3),  # [batch, height, width, channel]
    "vector": Layout(rank=2, channel_axis=1),  # [batch, channel]
}
