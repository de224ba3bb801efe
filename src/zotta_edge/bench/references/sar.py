"""SAR: sharpness-aware and reliable entropy minimization (Niu et al., ICLR 2023)."""

import math
from dataclasses import dataclass

import torch

from zotta_edge.bench.references.learner import Learner, entropies, published_rate, sgd
from zotta_edge.bench.references.network import Network
from zotta_edge.format import Floats

_TINY = 1e-12


@dataclass(frozen=True)
class Settings:
    margin: float = 0.4  # E0 / ln C
    radius: float = 0.05  # rho
    decay: float = 0.9  # of the average loss
    collapse: float = 0.2  # e_m: an average loss below it means one class has taken over


class Sar:
    """Entropy of sure samples at the worst point within rho, over the lower layers' affines.

    The second pass takes the sure samples alone: norms without batch statistics see no difference.
    """

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        self.network, self.settings = network, Settings()
        self.margin = self.settings.margin * math.log(network.info.classes)  # E0
        self.learner = Learner(network, network.affines(network.lower_layers()), sgd)
        self.average: float | None = None  # of the second pass's loss

    @property
    def passes(self) -> float:
        return self.network.passes

    def predict(self, images: Floats) -> Floats:
        batch = torch.from_numpy(images)
        logits = self.network.logits(batch)
        entropy = entropies(logits)
        sure = entropy.detach() < self.margin
        if sure.any():
            self.learner.backward(entropy[sure].mean(), len(images))
            self._sharpness_aware_step(batch[sure], published_rate(self.network, len(images)))
            if self.average is not None and self.average < self.settings.collapse:
                self.reset()
        answer: Floats = logits.detach().numpy()
        return answer

    def reset(self) -> None:
        self.learner.reset()
        self.average = None

    def _sharpness_aware_step(self, images: torch.Tensor, rate: float) -> None:
        """theta <- theta - rate grad L(theta + rho g / |g|), where g is the gradient at theta."""
        parameters = self.learner.parameters
        before = [value.detach().clone() for value in parameters]
        self._climb()
        entropy = entropies(self.network.logits(images))
        still_sure = entropy.detach() < self.margin
        if still_sure.any():
            self._note(float(entropy[still_sure].detach().mean()))
            self.learner.backward(entropy[still_sure].mean(), len(images))
        with torch.no_grad():
            for value, old in zip(parameters, before, strict=True):
                value.copy_(old)
        if still_sure.any():
            self.learner.step(rate)

    def _climb(self) -> None:
        gradients = [value.grad for value in self.learner.parameters if value.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        with torch.no_grad():
            for value, gradient in zip(self.learner.parameters, gradients, strict=True):
                value.add_(self.settings.radius / (norm + _TINY) * gradient)

    def _note(self, loss: float) -> None:
        decay = self.settings.decay
        self.average = loss if self.average is None else decay * self.average + (1 - decay) * loss
