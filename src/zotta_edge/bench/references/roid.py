"""ROID: universal test-time adaptation (Marsden, Döbler and Yang, WACV 2024).

Weighted soft likelihood ratio and consistency under augmentation, weights averaged with the
source's, and answers corrected by the batch's class prior.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zotta_edge.bench.references.augment import Augmentation
from zotta_edge.bench.references.learner import (
    Learner,
    adam,
    entropies,
    sgd,
    symmetric_cross_entropy,
)
from zotta_edge.bench.references.network import Network
from zotta_edge.format import Floats

_FULL_BATCH = 64
_TINY = 1e-12


@dataclass(frozen=True)
class Settings:
    rate: float = 2.5e-4  # SGD with momentum 0.9, as published for ImageNet
    small_rate: float = 1e-3  # Adam, as published for CIFAR: few classes
    kept: float = 0.99  # of the adapted weights, the rest are the source's
    temperature: float = 1 / 3
    decay: float = 0.9  # of the mean prediction
    clip: float = 0.99  # of a probability in the likelihood ratio
    few_classes: int = 100


class Roid:
    """All norm affines; a batch is answered by the pass that its step is computed from."""

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        self.network, self.settings, self.seed = network, Settings(), seed
        few = network.info.classes <= self.settings.few_classes
        self.rate = self.settings.small_rate if few else self.settings.rate
        optimizer = adam if few else sgd
        self.learner = Learner(network, network.affines(network.info.layers), optimizer)
        self.generator = torch.Generator().manual_seed(seed)
        self.augment = Augmentation(network.info.preprocessing, self.generator)
        self.average = self._uniform()

    @property
    def passes(self) -> float:
        return self.network.passes

    def predict(self, images: Floats) -> Floats:
        batch = torch.from_numpy(images)
        logits = self.network.logits(batch)
        fixed = logits.detach()
        weights = self._weights(fixed)
        kept = weights > 0
        if kept.any():
            loss = weights[kept] * likelihood_ratio(logits[kept], self.settings.clip)
            views = self.network.logits(self.augment(batch[kept]))
            loss = loss + weights[kept] * symmetric_cross_entropy(views, logits[kept])
            self.learner.backward(loss.sum() / len(images), len(images) + int(kept.sum()))
            self.learner.step(self.rate * min(1.0, len(images) / _FULL_BATCH))
            self._towards_source()
        answer: Floats = prior_corrected(fixed).numpy()
        return answer

    def reset(self) -> None:
        self.learner.reset()
        self.generator.manual_seed(self.seed)
        self.average = self._uniform()

    def _uniform(self) -> Tensor:
        return torch.full((self.network.info.classes,), 1 / self.network.info.classes)

    def _weights(self, logits: Tensor) -> Tensor:
        """exp(diversity certainty / T), 0 for those less diverse than the mean, [batch]."""
        probability = logits.softmax(dim=1)
        alike = torch.cosine_similarity(self.average[None], probability, dim=1)
        diversity, certainty = _stretched(1 - alike), _stretched(-entropies(logits))
        weights = (diversity * certainty / self.settings.temperature).exp()
        decay = self.settings.decay
        self.average = decay * self.average + (1 - decay) * probability.mean(dim=0)
        return torch.where(diversity < diversity.mean(), torch.zeros(()), weights)

    @torch.no_grad()
    def _towards_source(self) -> None:
        for value, source in zip(self.learner.parameters, self.learner.source, strict=True):
            value.lerp_(source, 1 - self.settings.kept)


def likelihood_ratio(logits: Tensor, clip: float) -> Tensor:
    """- sum_c p_c log(p_c / (1 - p_c)), [batch]; p is clipped, where the ratio has no end."""
    p = logits.softmax(dim=1).clamp(max=clip)
    return -(p * (p / (1 - p) + 1e-5).log()).sum(dim=1)


def prior_corrected(logits: Tensor) -> Tensor:
    """log p + log of the smoothed class prior of the batch: rare answers count for less.

    prior = (p_hat + s) / (1 + s C), p_hat the mean prediction, s = max(1/B, 1/C) / max p_hat.
    """
    batch, classes = logits.shape
    p = logits.softmax(dim=1).mean(dim=0)
    smooth = max(1 / batch, 1 / classes) / float(p.max())
    prior = (p + smooth) / (1 + smooth * classes)
    return logits.log_softmax(dim=1) + prior.log()


def _stretched(values: Tensor) -> Tensor:
    """From 0 to 1."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp_min(_TINY)
