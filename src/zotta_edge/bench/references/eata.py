"""EATA: efficient test-time adaptation without forgetting (Niu et al., ICML 2022)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from zotta_edge.bench.references.learner import Learner, entropies, published_rate, sgd
from zotta_edge.bench.references.network import Network, chunks
from zotta_edge.format import Floats, Layer


@dataclass(frozen=True)
class Settings:
    """The published values for ImageNet; those for CIFAR-10 serve nets with few classes."""

    margin: float = 0.4  # E0 / ln C
    similarity: float = 0.05  # epsilon: samples as close as this to past answers are redundant
    fisher: float = 2000.0  # beta
    decay: float = 0.9  # of the average answer
    fisher_images: int = 2000

    @classmethod
    def of(cls, classes: int) -> "Settings":
        return cls() if classes >= 100 else cls(similarity=0.4, fisher=1.0)


class Eata:
    """Weighted entropy of the sure and novel samples, anchored where the source's Fisher is large.

    Gradients of all samples are computed, as in the authors' own code; those left out weigh 0.
    """

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        self.network, self.settings = network, Settings.of(network.info.classes)
        self.margin = self.settings.margin * math.log(network.info.classes)  # E0
        self.learner = Learner(network, network.affines(self.trained(network)), sgd)
        with network.uncounted():
            self.fisher = self._fisher(source[: self.settings.fisher_images])
        self.average: Tensor | None = None  # of past probabilities, [class]

    @classmethod
    def trained(cls, network: Network) -> tuple[Layer, ...]:
        return network.info.layers

    @property
    def passes(self) -> float:
        return self.network.passes

    def predict(self, images: Floats) -> Floats:
        logits = self.network.logits(torch.from_numpy(images))
        entropy = entropies(logits)
        kept = self._kept(logits.detach(), entropy.detach())
        if kept.any():
            sure = entropy[kept]
            weighted = (self.margin - sure.detach()).exp() * sure
            self.learner.backward(weighted.mean() + self._forgetting(), len(images))
            self.learner.step(published_rate(self.network, len(images)))
        answer: Floats = logits.detach().numpy()
        return answer

    def reset(self) -> None:
        self.learner.reset()
        self.average = None

    def _kept(self, logits: Tensor, entropy: Tensor) -> Tensor:
        """Sure, H < E0, and unlike past answers, |cos(p, average p)| < epsilon; a mask [batch]."""
        kept = entropy < self.margin
        probability = logits.softmax(dim=1)
        if self.average is not None:
            similarity = F.cosine_similarity(self.average[None], probability, dim=1)
            kept &= similarity.abs() < self.settings.similarity
        if kept.any():
            fresh = probability[kept].mean(dim=0)
            past = fresh if self.average is None else self.average
            self.average = self.settings.decay * past + (1 - self.settings.decay) * fresh
        return kept

    def _forgetting(self) -> Tensor:
        """beta sum_i F_i (theta_i - theta_i^S)^2."""
        moved = zip(self.fisher, self.learner.parameters, self.learner.source, strict=True)
        total = torch.stack([(weight * (now - then) ** 2).sum() for weight, now, then in moved])
        return self.settings.fisher * total.sum()

    def _fisher(self, source: Floats) -> list[Tensor]:
        """Diagonal Fisher information: the squared gradient of the loss against the network's own
        answers, averaged over batches of source images."""
        total = [torch.zeros_like(value) for value in self.learner.parameters]
        batches = 0
        for images in chunks(source):
            logits = self.network.logits(images)
            self.learner.backward(F.cross_entropy(logits, logits.argmax(dim=1)), len(images))
            for sum_, value in zip(total, self.learner.parameters, strict=True):
                assert value.grad is not None
                sum_ += value.grad**2
            batches += 1
        return [sum_ / max(batches, 1) for sum_ in total]


class EataCheckpointing(Eata):
    """EATA(GC): gradient checkpointing, the same answers for less memory and a third pass."""

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        network.recompute()
        super().__init__(network, source, seed)


class EataLast(Eata):
    """The paper's EATA*: only the norms of the last two blocks, so that less is kept for the way
    back."""

    @classmethod
    def trained(cls, network: Network) -> tuple[Layer, ...]:
        return network.blocks()[-2:]
