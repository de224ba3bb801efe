"""DeYO: entropy is not enough for test-time adaptation (Lee et al., ICLR 2024)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from zotta_edge.bench.references.learner import Learner, entropies, published_rate, sgd
from zotta_edge.bench.references.network import Network
from zotta_edge.format import Floats


@dataclass(frozen=True)
class Settings:
    margin: float = 0.5  # largest entropy of a sure sample / ln C
    normal: float = 0.4  # E0 / ln C
    drop: float = 0.2  # of the probability when the patches are shuffled
    patches: int = 4  # a side


class Deyo:
    """Weighted entropy of sure samples whose answer falls with the shape of what they show."""

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        self.network, self.settings, self.seed = network, Settings(), seed
        self.learner = Learner(network, network.affines(network.lower_layers()), sgd)
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def passes(self) -> float:
        return self.network.passes

    def predict(self, images: Floats) -> Floats:
        batch = torch.from_numpy(images)
        logits = self.network.logits(batch)
        entropy = entropies(logits)
        sure = entropy.detach() < self.settings.margin * self._most
        if sure.any():
            drop = self._drop(batch[sure], logits.detach()[sure])
            shaped = drop > self.settings.drop
            if shaped.any():
                self._step(entropy[sure][shaped], drop[shaped], len(images))
        answer: Floats = logits.detach().numpy()
        return answer

    def reset(self) -> None:
        self.learner.reset()
        self.generator.manual_seed(self.seed)

    @property
    def _most(self) -> float:
        return math.log(self.network.info.classes)

    def _step(self, entropy: Tensor, drop: Tensor, batch: int) -> None:
        """Weights exp(E0 - H) + exp(PLPD), which carry no gradient."""
        weight = (self.settings.normal * self._most - entropy.detach()).exp() + drop.exp()
        self.learner.backward((weight * entropy).mean(), batch)
        self.learner.step(published_rate(self.network, batch))

    def _drop(self, images: Tensor, logits: Tensor) -> Tensor:
        """PLPD: what the predicted class loses when only texture is left, [batch]."""
        with torch.no_grad():
            shuffled = self.network.logits(self._shuffled(images)).softmax(dim=1)
        probability, predicted = logits.softmax(dim=1).max(dim=1)
        return probability - shuffled.gather(1, predicted[:, None])[:, 0]

    def _shuffled(self, images: Tensor) -> Tensor:
        """Every image cut into patches x patches pieces, put together in an order of its own."""
        side, (height, width) = self.settings.patches, images.shape[2:]
        whole = (height // side * side, width // side * side)
        kernel = (whole[0] // side, whole[1] // side)
        pieces = F.unfold(F.interpolate(images, whole), kernel, stride=kernel)  # [batch, ., piece]
        keys = torch.rand(len(images), side * side, generator=self.generator)
        order = keys.argsort(dim=1)[:, None].expand_as(pieces)
        mixed = F.fold(pieces.gather(2, order), whole, kernel, stride=kernel)
        return F.interpolate(mixed, (height, width))
