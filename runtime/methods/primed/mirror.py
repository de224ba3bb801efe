"""A second opinion: the answer to the mirrored image."""

import numpy as np

from zotta_edge.format import Floats, Prime
from zotta_edge.runtime.methods.primed.lens import Lens
from zotta_edge.runtime.methods.primed.own_lens import OwnLens
from zotta_edge.runtime.methods.primed.published import Published
from zotta_edge.runtime.methods.primed.settings import PrimedSettings


class Mirror:
    """Averages the answers to a batch and to its mirror image.

    Used where the budget pays for a second pass and where, at calibration, the model gave most
    source images and their mirror images the same class.
    """

    def __init__(
        self, prime: Prime, lens: Lens | OwnLens, source: Floats, settings: PrimedSettings
    ) -> None:
        agrees = prime.mirrored >= settings.mirror_agreement
        self._available = settings.budget >= 2 and agrees
        self._lens, self._source, self._parts = lens, source, settings.mirror_parts

    def reserve(self, images: int) -> int:
        """Passes that a batch's mirror needs."""
        return images if self._available else 0

    def wanted(self, known: Published) -> bool:
        """Whether the stream has drifted, so that a second opinion helps."""
        return self._available and known.theta is not self._source

    def averaged(self, logits: Floats, images: Floats, known: Published) -> Floats:
        """The mean of the logits and those of the mirrored images, in parts to save memory."""
        parts = np.array_split(images, min(self._parts, len(images)))
        turned = np.concatenate([self._answer(part, known) for part in parts])
        mean: Floats = (logits + turned) * np.float32(0.5)
        return mean

    def _answer(self, images: Floats, known: Published) -> Floats:
        return self._lens.read(images, known, mirror=True).answer(known.theta).logits
