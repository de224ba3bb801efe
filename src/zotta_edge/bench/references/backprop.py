"""Back-propagation of the product's own objective, Eq. 5: what a true gradient would reach."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zotta_edge.bench.references.learner import Learner, adam, entropies
from zotta_edge.bench.references.network import Network
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats

_TINY = 1e-12  # the square root of no variance has no slope


@dataclass(frozen=True)
class Settings:
    entropy_weight: float = 0.0  # lambda1
    alignment_weight: float = 1.0  # lambda2
    rate: float = 1e-2  # Adam's; the best of 1e-3, 3e-3 and 1e-2 on speckle noise and gaussian blur


class Backprop:
    """Adam on Eq. 5 over the chosen layers' affines; the alignment term alone.

    The statistics of the source are this network's own: those in the model file are of the
    quantized one. A batch is answered by the pass that its step is computed from.
    """

    def __init__(
        self, network: Network, source: Floats, seed: int = 0, settings: Settings | None = None
    ) -> None:
        if not network.info.chosen:
            raise ZottaError("the model file has no chosen layers: run zotta-edge calibrate first")
        self.network, self.options = network, settings or self._defaults(network)
        chosen = [network.info.layers[index] for index in network.info.chosen]
        self.mean, self.std = moments(network.source_features(source))
        self.learner = Learner(network, network.affines(chosen), adam)

    @property
    def passes(self) -> float:
        return self.network.passes

    def predict(self, images: Floats) -> Floats:
        logits, features = self.network.outputs(torch.from_numpy(images))
        self.learner.backward(self.loss(logits, features), len(images))
        self.learner.step(self.options.rate)
        answer: Floats = logits.detach().numpy()
        return answer

    def loss(self, logits: Tensor, features: Tensor) -> Tensor:
        """lambda1 mean H + lambda2 sum_l |mu_l - mu_l^S|^2 + |sigma_l - sigma_l^S|^2."""
        mean, std = moments(features)
        aligned = (mean - self.mean).square().sum()
        if len(features) > 1:  # one sample has no spread
            aligned = aligned + (std - self.std).square().sum()
        entropy = entropies(logits).mean()
        return self.options.entropy_weight * entropy + self.options.alignment_weight * aligned

    def reset(self) -> None:
        self.learner.reset()

    def _defaults(self, network: Network) -> Settings:
        return Settings()


class BackpropWithEntropy(Backprop):
    """Both terms, weighed as the paper weighs them: 1 and 0.4 for transformers, else 0.1 and 1."""

    def _defaults(self, network: Network) -> Settings:
        return Settings(1.0, 0.4) if network.is_transformer else Settings(0.1, 1.0)


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """mu and sigma of each channel over the batch, with 1/N: two [D]."""
    mean = features.mean(dim=0)
    variance = (features - mean).square().mean(dim=0)
    return mean, variance.clamp_min(_TINY).sqrt()
