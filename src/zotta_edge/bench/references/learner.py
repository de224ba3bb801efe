"""The parameters that back-propagation moves, their optimizer, and their way back."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from zotta_edge.bench.references.network import Network

Optimizer = torch.optim.Optimizer
_FULL_BATCH = 64  # the batch size that published learning rates are for


class Learner:
    """Gradients for `parameters` and nothing else, so that no frozen weight costs a product."""

    def __init__(
        self,
        network: Network,
        parameters: Sequence[nn.Parameter],
        optimizer: Callable[[Sequence[nn.Parameter]], Optimizer],
    ) -> None:
        self.network, self.parameters, self._make = network, list(parameters), optimizer
        for value in self.parameters:
            value.requires_grad_(True)
        self.source = [value.detach().clone() for value in self.parameters]
        self.share = network.share_behind(self.parameters)
        self.optimizer = self._make(self.parameters)

    def backward(self, loss: Tensor, images: int) -> None:
        """The gradient of `loss`, which `images` samples went into."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.network.count_backward(images, self.share)

    def step(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def reset(self) -> None:
        with torch.no_grad():
            for value, source in zip(self.parameters, self.source, strict=True):
                value.copy_(source)
        self.optimizer = self._make(self.parameters)


def sgd(parameters: Sequence[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.0, momentum=0.9)


def adam(parameters: Sequence[nn.Parameter]) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.0)


def published_rate(network: Network, batch: int) -> float:
    """1e-3 for transformers, 2.5e-4 for GroupNorm nets, less for small batches.

    As the SAR authors set it for all entropy methods: in proportion to the batch below 64 images,
    for convolutional nets below 32.
    """
    fullness = batch / _FULL_BATCH
    if network.is_transformer:
        return 1e-3 * min(1.0, fullness)
    return 2.5e-4 * min(1.0, 2 * fullness)


def entropies(logits: Tensor) -> Tensor:
    """H_i = - sum_c y_c log y_c, [batch]."""
    log_probability = logits.log_softmax(dim=1)
    return -(log_probability.exp() * log_probability).sum(dim=1)


def symmetric_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """- (sum_c q_c log p_c + sum_c p_c log q_c) / 2, [batch]."""
    log_p, log_q = one.log_softmax(dim=1), other.log_softmax(dim=1)
    return -(log_q.exp() * log_p + log_p.exp() * log_q).sum(dim=1) / 2
