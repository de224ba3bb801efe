"""The constants of channel-moment alignment. docs/moments.md tells how they were chosen."""

from dataclasses import dataclass

from zotta_edge.options import Options, option
from zotta_edge.runtime.methods.contract import MethodSettings
from zotta_edge.runtime.methods.primed.budget import BudgetSettings
from zotta_edge.runtime.methods.primed.settings import FilterSettings
from zotta_edge.runtime.watch.collapse import CollapseSettings
from zotta_edge.runtime.watch.novelty import NoveltySettings


@dataclass(frozen=True)
class RunningMomentSettings(Options):
    moment_window: int = option(512, "samples behind the channels' running moments", low=1)
    moment_patience: float = option(
        3.0,
        "by how much the variance of the running moments is taken for more than that of "
        "independent images: what follows each other is alike",
        low=0,
    )
    moment_mix: float = option(
        4.0, "times the unevenness of the answers' mix of classes, as further variance", low=0
    )
    moment_sureness: float = option(
        8.0,
        "power of the answers' sureness, E sum p_i^2, by which the unevenness of their mix counts",
        low=0,
    )
    moment_again: float = option(
        0.05,
        "a batch is answered again where its answers show that the variance was taken too small "
        "by more than this",
        low=0,
    )
    moment_settled: int = option(
        128, "images of a stream after which its alignment is written into the weights", low=1
    )


@dataclass(frozen=True)
class MomentSettings(
    MethodSettings,
    FilterSettings,
    NoveltySettings,
    CollapseSettings,
    BudgetSettings,
    RunningMomentSettings,
):
    """Chosen on the extra corruptions and home-made ones, on images that no result is of."""
