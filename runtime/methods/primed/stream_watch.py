"""Notice that another stream has begun, from the layers that adaptation cannot reach."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats, ModelInfo
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.methods.contract import calibration_of
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.drift import Drift
from zotta_edge.runtime.watch.novelty import Novelty
from zotta_edge.runtime.watch.statistics import Doubles, Source
from zotta_edge.runtime.zeroth.forward import Batch


class StreamWatch:
    """The drift of a stream, and how long the stream has been what it is.

    Where every layer moves with theta, the drift is measured but no change is ever seen: the
    features do not speak of the stream alone.
    """

    def __init__(self, info: ModelInfo, chosen: tuple[int, ...], settings: PrimedSettings) -> None:
        calibration = calibration_of(info)
        self.drift = Drift(Source.of(calibration), chosen, settings)
        self._layers = info.layers[: self.drift.untouched_layers]
        self._novelty = Novelty(Source.of(calibration, last=len(self._layers)), settings)
        self._window = settings.drift_window
        self.reset()

    def reset(self) -> None:
        self.unchanged = self._window  # samples since the stream changed
        self.drift.reset()
        self._novelty.reset()

    def features(self, batch: Batch) -> list[Floats]:
        """Those of the layers that theta cannot reach, [batch, channel] each."""
        return [batch.stem.outputs[layer.feature] for layer in self._layers]

    def weigh(self, features: Sequence[Floats], batch: int) -> Doubles:
        """How new each image is, 0 to 1; unknown where every layer moves with theta."""
        return self._novelty.weigh(features) if features else np.ones(batch)

    def changed(self, features: Sequence[Floats], weights: Doubles) -> bool:
        """Take in a batch's features; whether they belong to another stream."""
        if not features:
            return False
        self.drift.observe(features, weights)
        self.unchanged += len(features[0])
        if self.unchanged <= self._window:
            self.drift.remember()  # a small batch alone says little of what the stream is like
            return False
        return self.drift.changed

    def begin(self, features: Sequence[Floats], weights: Doubles, known: int) -> None:
        """Compare with this batch from now on; `known` of its samples are of the new stream."""
        if features:
            self.drift.begin(features, weights)
            self.unchanged = known

    def observe_adapted(self, outputs: Outputs) -> None:
        """Measure the drift in the answering pass, where no layer is out of theta's reach."""
        if not self._layers:
            self.drift.observe(outputs.features)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"unchanged": np.array([self.unchanged])} | states.states_of(self._parts())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.unchanged = int(state["unchanged"][0])
        states.restore_all(self._parts(), state)

    def _parts(self) -> dict[str, states.Stateful]:
        return {"drift": self.drift, states.row("novelty", "frames"): self._novelty}
