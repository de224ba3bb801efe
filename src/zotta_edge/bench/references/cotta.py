"""CoTTA: continual test-time domain adaptation (Wang et al., CVPR 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zotta_edge.bench.references.augment import Augmentation
from zotta_edge.bench.references.learner import Learner, sgd, symmetric_cross_entropy
from zotta_edge.bench.references.network import Network
from zotta_edge.format import Floats


@dataclass(frozen=True)
class Settings:
    decay: float = 0.999  # of the teacher
    threshold: float = 0.1  # a source network less sure than this calls for augmentations
    augmentations: int = 32
    restored: float = 0.001  # chance of a parameter to return to its source value after a step
    rate: float = 0.005


class Cotta:
    """The student learns all its parameters from a slow average of itself, which answers."""

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        self.settings, self.seed = Settings(), seed
        self.student = network
        self.teacher = Network(network.module, network.info)
        self.anchor = Network(network.module, network.info)
        self.learner = Learner(network, list(network.module.parameters()), sgd)
        self.generator = torch.Generator().manual_seed(seed)
        self.augment = Augmentation(network.info.preprocessing, self.generator)

    @property
    def passes(self) -> float:
        return self.student.passes + self.teacher.passes + self.anchor.passes

    def predict(self, images: Floats) -> Floats:
        batch = torch.from_numpy(images)
        taught = self._taught(batch)
        loss = symmetric_cross_entropy(self.student.logits(batch), taught).mean()
        self.learner.backward(loss, len(images))
        self.learner.step(self.settings.rate)
        self._follow()
        self._restore()
        answer: Floats = taught.numpy()
        return answer

    def reset(self) -> None:
        self.learner.reset()
        with torch.no_grad():
            for slow, source in zip(self._slow(), self.learner.source, strict=True):
                slow.copy_(source)
        self.generator.manual_seed(self.seed)

    @torch.no_grad()
    def _taught(self, batch: Tensor) -> Tensor:
        """The teacher's logits, averaged over augmented views when the source is lost."""
        confidence = self.anchor.logits(batch).softmax(dim=1).amax(dim=1).mean()
        if confidence >= self.settings.threshold:
            return self.teacher.logits(batch)
        total = torch.zeros(())
        for _ in range(self.settings.augmentations):
            total = total + self.teacher.logits(self.augment(batch))
        return total / self.settings.augmentations

    @torch.no_grad()
    def _follow(self) -> None:
        for slow, fast in zip(self._slow(), self.learner.parameters, strict=True):
            slow.lerp_(fast, 1 - self.settings.decay)

    @torch.no_grad()
    def _restore(self) -> None:
        for value, source in zip(self.learner.parameters, self.learner.source, strict=True):
            chosen = torch.rand(value.shape, generator=self.generator) < self.settings.restored
            value.copy_(torch.where(chosen, source, value))

    def _slow(self) -> list[torch.nn.Parameter]:
        return list(self.teacher.module.parameters())
