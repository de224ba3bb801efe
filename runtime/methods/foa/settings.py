"""The constants of FOA."""

from dataclasses import dataclass

from zotta_edge.options import option
from zotta_edge.runtime.methods.activation_shift import ShiftSettings
from zotta_edge.runtime.methods.contract import MethodSettings
from zotta_edge.runtime.watch.statistics import QueueSettings


@dataclass(frozen=True)
class FoaSettings(MethodSettings, QueueSettings, ShiftSettings):
    """The paper's, for ViT-Base and batches of 64."""

    foa_candidates: int = option(
        28, "K, passes a batch: a generation, and what answered last", low=5
    )
    foa_alignment: float = option(
        0.4, "lambda, weight of the distance from the source's statistics", low=0
    )
    foa_reference_batch: int = option(64, "batch size that lambda is for", low=1)
    foa_sigma: float = option(1.0, "of the first generation, around zero", low=1e-6)
    foa_filter_step: float = option(
        0.02, "what one sigma is to a filter's entry; prompts are searched as they are", low=0
    )
