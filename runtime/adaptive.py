"""The library's face: a classifier that may improve with every prediction."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.files import sha256
from zotta_edge.format import Floats, ModelInfo
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.methods import Answer, chosen_layers, default_method, find
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.state import file as states
from zotta_edge.runtime.watch.statistics import log_softmax

Images = Sequence[NDArray[Any]] | NDArray[Any]


@dataclass(frozen=True)
class Result:
    """The answers to one batch."""

    labels: NDArray[np.intp]  # the most probable class of each image, by index
    probabilities: Floats  # [batch, class]
    logits: Floats  # [batch, class]
    adapted: bool  # whether this batch changed the model
    drift: float | None  # how far the stream is from the source, in its standard deviations


class AdaptiveModel:
    """A model file that adapts while it answers.

    >>> model = AdaptiveModel.load("vit_int8.onnx")
    >>> model.predict(images).labels
    >>> model.save_state("site-7.state")

    Calls may come from several threads: those that adapt take turns, and no one ever sees half an
    update.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings | None = None,
        method: str | None = None,
        fingerprint: str = "",
    ) -> None:
        self.settings = settings or Settings()
        self.method = method or default_method(engine.info, self.settings)
        self._engine, self.fingerprint = engine, fingerprint
        self._method = find(self.method)(engine, self.settings)
        self._turn = threading.RLock()
        self._frozen = False
        self._counts = np.zeros(3, np.int64)  # images, batches, resets

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: Settings | None = None,
        method: str | None = None,
        provider: str | None = None,
        threads: int | None = None,
    ) -> "AdaptiveModel":
        """Open a calibrated model file.

        `method` None is `primed` where the file is primed, else `zotta`; `threads` None uses the
        physical cores.
        """
        settings = settings or Settings()
        chosen = settings.layers
        if method is not None:
            chosen = chosen_layers(find(method), settings, lambda: read_info(path))
        engine = Engine.open(path, chosen=chosen, threads=threads, provider=provider)
        return cls(engine, settings, method, sha256(path))

    def unadapted(self) -> "AdaptiveModel":
        """The same file without adaptation, to compare with; weights and sessions are shared."""
        return AdaptiveModel(self._engine, self.settings, "none", self.fingerprint)

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def passes(self) -> float:
        """Full forward passes executed so far, one for each image; a part of one counts as such."""
        return self._engine.passes

    def predict(self, images: Images, adapt: bool = True) -> Result:
        """Adapt to a batch where that is due, then answer it.

        `images` are uint8 images of any sizes, or a preprocessed float batch [batch, C, H, W].
        With `adapt` False, or frozen, the model answers as it is and without waiting for its turn.
        """
        batch = as_batch(images, self.info.preprocessing)
        if adapt and not self._frozen:
            with self._turn:
                if not self._frozen:  # it may have been while this call waited
                    return _result(self._learn(batch))
        return _result(self._method.read(batch))

    def _learn(self, batch: Floats) -> Answer:
        if self.settings.episodic:
            self._method.reset()
        answer = self._method.predict(batch)
        self._counts += (len(batch), 1, 0)
        return answer

    def reset(self) -> None:
        """Back to the source, as if newly loaded; only counts stay."""
        with self._turn:
            self._method.reset()
            self._counts += (0, 0, 1)

    def freeze(self) -> None:
        """Keep what was learned and learn no more."""
        with self._turn:  # an update under way is finished first
            self._frozen = True

    def unfreeze(self) -> None:
        self._frozen = False

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a state file would hold, by name."""
        with self._turn:
            return self._state()

    def save_state(self, path: str | Path) -> None:
        """Write what was learned; a model that loads it goes on bit for bit as this one would."""
        states.save(path, self.arrays(), self.fingerprint, self.method)

    def load_state(self, path: str | Path) -> None:
        """Go on from a saved state; one that does not fit is refused and changes nothing."""
        with self._turn:
            arrays = states.load(path, self._state(), self.fingerprint, self.method)
            self._method.restore(states.section(arrays, "method"))
            self._counts = arrays["counts"].copy()

    def status(self) -> dict[str, Any]:
        """Numbers for reports and dashboards."""
        with self._turn:
            images, batches, resets = self._counts.tolist()
            return {
                "method": self.method,
                "frozen": self._frozen,
                "images": images,
                "batches": batches,
                "resets": resets,
                "passes": self.passes,
            } | self._method.status()

    def _state(self) -> dict[str, NDArray[Any]]:
        return states.joined({"method": self._method.state()}) | {"counts": self._counts.copy()}


def _result(answer: Answer) -> Result:
    return Result(
        answer.logits.argmax(axis=1),
        np.exp(log_softmax(answer.logits)),
        answer.logits,
        answer.adapted,
        answer.drift,
    )
