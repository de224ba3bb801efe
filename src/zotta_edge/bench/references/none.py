"""The fp32 network as it is: the line that every reference starts from."""

import torch

from zotta_edge.bench.references.network import Network
from zotta_edge.format import Floats


class NoAdaptation:
    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        self.network = network

    @property
    def passes(self) -> float:
        return self.network.passes

    def predict(self, images: Floats) -> Floats:
        with torch.inference_mode():
            logits: Floats = self.network.logits(torch.from_numpy(images)).numpy()
        return logits

    def reset(self) -> None:
        """There is nothing to forget."""
