"""TENT: fully test-time adaptation by entropy minimization (Wang et al., ICLR 2021)."""

import torch

from zotta_edge.bench.references.learner import Learner, entropies, published_rate, sgd
from zotta_edge.bench.references.network import Network
from zotta_edge.format import Floats


class Tent:
    """One SGD step a batch on the mean entropy, over all norm affines.

    A batch is answered by the pass that its step is computed from, so before the step.
    """

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        self.network = network
        self.learner = Learner(network, network.affines(network.info.layers), sgd)

    @property
    def passes(self) -> float:
        return self.network.passes

    def predict(self, images: Floats) -> Floats:
        logits = self.network.logits(torch.from_numpy(images))
        self.learner.backward(entropies(logits).mean(), len(images))
        self.learner.step(published_rate(self.network, len(images)))
        answer: Floats = logits.detach().numpy()
        return answer

    def reset(self) -> None:
        self.learner.reset()
