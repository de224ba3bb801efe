"""Batches that were prepared for another model: their values tell, whatever they show.

(x / 255 - mean) / std of the file's own mean and std lies between that of black and that of white.
Where much lies outside, another mean and std were taken. A network may still answer, but how such
images differ from the source is no drift of what a camera sees, and moves that take it back were
never seen in calibration.
"""

from dataclasses import dataclass

from zotta_edge.format import Floats, Preprocessing
from zotta_edge.options import Options, option
from zotta_edge.runtime.events import Discarded, Events
from zotta_edge.runtime.io.preprocessing import value_range

_TOLERANCE = 0.05  # of the range: bicubic resizing overshoots
_LOOKED_AT = 8192  # values of a batch, at most about twice as many


@dataclass(frozen=True)
class MispreparedSettings(Options):
    """Noise of 0.38, added to images from 0 to 1 and not clipped, leaves 23 % outside."""

    misprepared: float = option(
        0.25,
        "share of a batch's values that no image of the model can have, above which the source "
        "answers it; 1: never",
        low=0,
        high=1,
    )


class Misprepared:
    """Looks for such batches.

    >>> import numpy as np
    >>> p = Preprocessing(8, 8, (0.5,), (0.5,))
    >>> watch = Misprepared(p, MispreparedSettings(), Events())
    >>> watch.complaint(np.full((1, 1, 8, 8), -2, np.float32))[:45]
    '100% of the values lie outside of -1 to 1, wh'
    >>> watch.found(np.full((1, 1, 8, 8), 1, np.float32))
    False
    """

    def __init__(self, p: Preprocessing, settings: MispreparedSettings, events: Events) -> None:
        self._black, self._white = value_range(p)
        self._most, self._events = settings.misprepared, events
        self._before = False

    def found(self, batch: Floats) -> bool:
        """Whether a prepared batch is one; the first of several is reported."""
        wrong, before = self.complaint(batch), self._before
        self._before = wrong is not None
        if wrong and not before:
            self._events.report(Discarded(wrong))
        return self._before

    def complaint(self, batch: Floats) -> str | None:
        """What is wrong with a batch's values; None: they may be images of this model."""
        slack = _TOLERANCE * (self._white - self._black)
        step = batch.size // _LOOKED_AT | 1  # odd: not down one column
        values = batch.reshape(-1)[::step]
        outside = (values < self._black - slack) | (values > self._white + slack)
        if (share := float(outside.mean())) <= self._most:
            return None
        return (
            f"{share:.0%} of the values lie outside of {self._black:.4g} to {self._white:.4g}, "
            "where this model has its images: check the mean and std that prepared them"
        )
