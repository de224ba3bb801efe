"""Torch references behind the face of a runtime model. Imports torch: never import it eagerly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from zotta_edge.bench.references import Network, find
from zotta_edge.bench.run.origin import Origin
from zotta_edge.calibration.samples import read_samples
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.models.checkpoint import State, load_weights, read_checkpoint
from zotta_edge.models.registry import ARCHITECTURES
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.watch.statistics import log_softmax

SOURCE_IMAGES = 256  # for statistics and Fisher information, where a reference wants them


class Fp32:
    """A reference that answers as `AdaptiveModel` does."""

    def __init__(
        self,
        network: Network,
        predict: Callable[[Floats], Floats],
        reset: Callable[[], None],
        passes: Callable[[], float],
        adapts: bool,
    ) -> None:
        self.network = network
        self._predict, self._reset, self._passes, self._adapts = predict, reset, passes, adapts

    @classmethod
    def build(cls, origin: Origin, model: Path, name: str, seed: int, threads: int) -> "Fp32":
        torch.set_num_threads(threads)
        info = read_info(model)
        network = Network(build_module(Path(origin.checkpoint)), info)
        samples = read_samples(origin.source, info.preprocessing, SOURCE_IMAGES, seed=0)
        reference = find(name)(network, samples.prepared(info.preprocessing), seed)
        return cls(
            network, reference.predict, reference.reset, lambda: reference.passes, name != "none"
        )

    def unadapted(self) -> "Fp32":
        """A plain pass of the same network: its time does not depend on what was learned."""

        def plain(images: Floats) -> Floats:
            with torch.inference_mode():
                logits: Floats = self.network.module(torch.from_numpy(images)).numpy()
                return logits

        return Fp32(self.network, plain, lambda: None, lambda: 0.0, False)

    @property
    def passes(self) -> float:
        return self._passes()

    def predict_prepared(self, batch: Floats, adapt: bool = True) -> Result:
        logits = np.asarray(self._predict(batch), np.float32)
        if not adapt:
            self.reset()
        labels, probabilities = logits.argmax(axis=1), np.exp(log_softmax(logits))
        return Result(labels, probabilities, logits, adapt and self._adapts, None)

    def status(self) -> dict[str, Any]:
        return {}

    def reset(self) -> None:
        self._reset()


def build_module(checkpoint: Path) -> nn.Module:
    """The architecture whose parameters the checkpoint holds, with its weights."""
    state = read_checkpoint(checkpoint)
    for architecture in ARCHITECTURES.values():
        head = state.get(f"{architecture.head}.weight")
        if head is None:
            continue
        with torch.device("meta"):  # shapes alone: the large ones cost nothing
            shapes = architecture.build(len(head)).state_dict()
        if _same_shapes(state, shapes):
            module = architecture.build(len(head))
            load_weights(module, state, checkpoint)
            return module
    raise ZottaError(
        f"{checkpoint} fits none of the architectures here: {', '.join(ARCHITECTURES)}"
    )


def _same_shapes(state: State, wanted: State) -> bool:
    return {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in wanted.items()
    }
