"""The constants of ZOA, as published (paper and code) for ViT-Base and batches of 64."""

from dataclasses import dataclass

from zotta_edge.options import option
from zotta_edge.runtime.methods.activation_shift import ShiftSettings
from zotta_edge.runtime.methods.contract import MethodSettings
from zotta_edge.runtime.watch.statistics import QueueSettings


@dataclass(frozen=True)
class ZoaSettings(MethodSettings, QueueSettings, ShiftSettings):
    zoa_alignment: float = option(
        30.0, "weight of the mean squared distance from the source's statistics", low=0
    )
    zoa_perturbation: float = option(0.02, "c of the delta", low=1e-6)
    zoa_rate: float = option(5e-4, "step of the delta", low=0)
    zoa_decay: float = option(0.4, "weight decay of the delta", low=0)
    zoa_mix_perturbation: float = option(0.05, "c of the mixture's alpha", low=1e-6)
    zoa_mix_rate: float = option(0.01, "step of alpha", low=0)
    zoa_mix_decay: float = option(0.1, "weight decay of alpha", low=0)
    zoa_temperature: float = option(10.0, "the mixture is softmax(10 alpha)", low=0)
    zoa_bank: int = option(32, "earlier domains kept", low=1)
    zoa_first: int = option(1, "first block adapted of a ViT with `zoa_depth` blocks", low=0)
    zoa_last: int = option(8, "last block adapted; networks of other depths in proportion", low=0)
    zoa_depth: int = option(12, "blocks of the ViT that the two are for", low=1)
    zoa_domain_memory: float = option(0.8, "of the running statistics of a domain", low=0, high=1)
    zoa_domain_threshold: float = option(0.1, "divergence that means another domain", low=0)
    zoa_domain_window: int = option(
        64, "samples compared at a time: the published batch, fewer are too noisy", low=1
    )
