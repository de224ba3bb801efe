"""UnMix-TNS: Tomar et al., Un-Mixing Test-Time Normalization Statistics, ICLR 2024.

K components of channel statistics stand for the kinds of images there are. Each image is normalized
by all of them, the nearest mixed with the image's own, and moves those near it a little. So a batch
of one class, or of several domains, or of one image, has statistics as fair as any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import IMAGE, Floats
from zotta_edge.options import option
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.methods.contract import Answer, MethodSettings

_MEANS, _VARIANCES = "zotta.unmix.means", "zotta.unmix.variances"
_PULLS = ("zotta.unmix.means.pull", "zotta.unmix.variances.pull")


@dataclass(frozen=True)
class UnMixSettings(MethodSettings):
    """As published (paper and code), but for the momentum, which was chosen on other corruptions.

    Streams here are shorter: 0.9 was the best of 0.1 (published), 0.3, 0.5 and 0.9.
    """

    unmix_components: int = option(16, "K, components of each norm's statistics", low=2)
    unmix_noise: float = option(
        0.5, "alpha, the components' share of the source's variance at first", low=0, high=0.99
    )
    unmix_momentum: float = option(
        0.9, "m; a batch of n moves components by 1 - (1 - m)^(n / 64)", low=0, high=1
    )


class UnMixTns:
    """Mixes K components of statistics, and moves them with the stream.

    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> AdaptiveModel.load(embedded.MODEL, method="unmix_tns")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: ...has no BatchNorm, whose statistics unmix_tns replaces: ...
    """

    moves_affines: ClassVar[bool] = False

    def __init__(self, engine: Engine, settings: UnMixSettings, events: Events) -> None:
        self._engine, self._settings = engine, settings
        self._graph = engine.file.rewritten("unmix", _with_components)
        self._channels = int(self._graph.shape(_MEANS)[1])
        self.reset()

    def reset(self) -> None:
        """The components scatter around the source: their mixture has its mean and variance.

        Drawn as published, then centred: 16 draws have a mean of their own, which cost 7 points.
        """
        own, rng = self._settings, np.random.default_rng(self._settings.seed)
        count = own.unmix_components
        scatter = np.sqrt(own.unmix_noise * count / (count - 1))
        noise = rng.standard_normal((count, self._channels), dtype=np.float32)
        means: Floats = np.float32(scatter) * (noise - noise.mean(axis=0))
        variances = np.full_like(means, 1 - own.unmix_noise)
        self._components: tuple[Floats, Floats] = means, variances

    def predict(self, images: Floats) -> Answer:
        answer, outputs = self._pass(images)
        momentum = 1 - (1 - self._settings.unmix_momentum) ** (len(images) / 64)
        means, variances = (
            values + np.float32(momentum) * outputs[pull]
            for values, pull in zip(self._components, _PULLS, strict=True)
        )
        self._components = means, variances
        return Answer(answer, True, None)

    def read(self, images: Floats) -> Answer:
        return Answer(self._pass(images)[0], False, None)

    def _pass(self, images: Floats) -> tuple[Floats, dict[str, Floats]]:
        means, variances = self._components
        outputs = self._graph({IMAGE: images, _MEANS: means, _VARIANCES: variances})
        self._engine.count(len(images))
        return self._engine.gathered(outputs).logits, outputs

    def state(self) -> dict[str, NDArray[Any]]:
        return {"means": self._components[0], "variances": self._components[1]}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._components = state["means"], state["variances"]

    def status(self) -> dict[str, Any]:
        return {
            "components": self._settings.unmix_components,
            "distance": float(np.sqrt(np.square(self._components[0].mean(axis=0)).mean())),
        }


def _with_components(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.methods.unmix_tns.graph import with_components

    return with_components(content, path)
