"""Matrices in 4 bits, as GGUF stores them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats

BLOCK = 32
MIDDLE = 8  # the code of zero where a block has no offset of its own
_HALF = 2  # bytes of a float16
_WITH_LEAST = {"Q4_0": False, "Q4_1": True}


@dataclass(frozen=True, eq=False)
class FourBits:
    """Rows of weights: step * code + least, in blocks of 32 along a row.

    Attributes
    ----------
    codes
        0 to 15, [out, blocks, 32].
    steps, least
        [out, blocks].
    """

    codes: NDArray[np.uint8]
    steps: Floats
    least: Floats

    @classmethod
    def of_gguf(cls, data: NDArray[np.uint8], kind: str) -> "FourBits | None":
        """From the bytes [out, bytes of a row] of a GGUF tensor; None if it is no 4-bit one.

        A block is its step and, in Q4_1, its least value as float16, then 16 bytes whose low halves
        are the first 16 codes and whose high halves the others.
        """
        if kind not in _WITH_LEAST or data.ndim != 2:
            return None
        head = 2 * _HALF if _WITH_LEAST[kind] else _HALF
        blocks = data.reshape(len(data), -1, head + BLOCK // 2)
        numbers = np.ascontiguousarray(blocks[..., :head]).view(np.float16).astype(np.float32)
        packed, steps = blocks[..., head:], numbers[..., 0]
        codes = np.concatenate([packed & 15, packed >> 4], axis=-1)
        return cls(codes, steps, numbers[..., 1] if _WITH_LEAST[kind] else -MIDDLE * steps)

    def rows(self, order: NDArray[Any]) -> "FourBits":
        """The same rows in another order."""
        return FourBits(self.codes[order], self.steps[order], self.least[order])

    def values(self) -> Floats:
        """The matrix [out, in]."""
        blocks: Floats = self.steps[..., None] * self.codes + self.least[..., None]
        return blocks.reshape(len(blocks), -1)
