"""theta: the chosen norms' scales as one vector, each in units of its source value."""

import numpy as np

from zotta_edge.decoder_format import DecoderInfo
from zotta_edge.format import Floats


class ScaleVector:
    """From theta to the graph's inputs; theta is 1 everywhere at the source.

    In units of their own because a decoder's scales span two orders of magnitude from its first
    block to its last: an absolute perturbation would be lost in the one and ruin the other.
    """

    def __init__(self, info: DecoderInfo) -> None:
        self._sources = {norm.scale: info.affines[norm.scale] for norm in info.norms}
        self._ends = np.cumsum([norm.channels for norm in info.norms])
        self.source: Floats = np.ones(int(self._ends[-1]), np.float32)
        self.source.flags.writeable = False

    def __len__(self) -> int:
        return len(self.source)

    def inputs(self, theta: Floats) -> dict[str, Floats]:
        """Values for the graph; theta is [d], or [rows, d]."""
        rows = np.atleast_2d(theta)
        parts = np.split(rows, self._ends[:-1], axis=1)
        return {
            name: source * part[:, None]
            for (name, source), part in zip(self._sources.items(), parts, strict=True)
        }
