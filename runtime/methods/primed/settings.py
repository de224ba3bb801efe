"""The constants of primed alignment. docs/primed.md tells how they were chosen."""

from dataclasses import dataclass

from zotta_edge.options import option
from zotta_edge.runtime.methods.contract import MethodSettings
from zotta_edge.runtime.methods.primed.budget import BudgetSettings
from zotta_edge.runtime.watch.collapse import CollapseSettings
from zotta_edge.runtime.watch.drift import DriftSettings
from zotta_edge.runtime.watch.novelty import NoveltySettings


@dataclass(frozen=True)
class FilterSettings(DriftSettings):
    """When a filter is tried, taken, kept and dropped (docs/primed.md, "Which filter, if any")."""

    filters: bool = option(
        True, "filter images of a drifted stream where that brings them closer to the source"
    )
    filter_trial: int = option(12, "images that every filter is tried on before a choice", low=1)
    filter_evidence: int = option(
        64, "images that a stream's trials look at in all, before the choice is final", low=1
    )
    filter_gain: float = option(
        0.7,
        "a filter is taken when its loss is below this share of the loss without",
        low=0,
        high=1,
    )
    filter_keep: float = option(
        0.85,
        "a filter is dropped when its loss is above this share of the loss without",
        low=0,
        high=1,
    )
    filter_hope: float = option(
        0.2,
        "filters are tried whose predicted log loss is at most this much above that of the best, "
        "none among them",
        low=0,
    )
    vote_gain: float = option(
        0.82,
        "where the loss was predicted, too: a filter is taken when the mean of both is below this "
        "share of the loss without...",
        low=0,
        high=1,
    )
    vote_keep: float = option(0.9, "...and dropped when it is above this share", low=0, high=1)
    filter_unevenness: float = option(
        0.1,
        "no filter is tried while the mix of classes is more uneven: a few are no evidence",
        low=0,
    )
    filter_change: float = option(
        0.3, "the stream is another when log |f(x) - x|^2 moves by more than this", low=0
    )


@dataclass(frozen=True)
class PrimedSettings(
    MethodSettings, FilterSettings, NoveltySettings, CollapseSettings, BudgetSettings
):
    """Chosen on the four extra corruptions (docs/primed.md, "How it was chosen")."""

    signatures: bool = option(
        True,
        "let every image have its own filter and move, where the file has signatures; false: one "
        "filter for the stream, found by trial",
    )
    filter_margin: float = option(
        0.1,
        "least log gain that an image's own signature must promise for a filter to be used",
        low=0,
    )
    own_least: float = option(
        0.5,
        "of the mean squared shift that signatures of source images ask for: up to this much an "
        "image's own move is nothing",
        low=0,
    )
    common_minimum: float = option(
        8.0,
        "images after which half of what a stream's images have in common counts",
        low=0,
    )
    common_power: float = option(
        4.0,
        "power of how far the images of a stream ask for the same filter: high, so that many "
        "worlds at once have nothing in common",
        low=0,
    )
    common_reach: float = option(
        4.0,
        "times the variance of one kind: an image whose predicted gains are further from the "
        "stream's mean is of another world, and has the filter of its own choice",
        low=0,
    )
    trial_sameness: float = option(
        0.5,
        "filters are tried where the images of a stream have at least this much in common...",
        low=0,
        high=1,
    )
    trial_images: int = option(32, "...and have had it for this many, at most 64", low=1, high=64)
    damping: float = option(
        3.0, "lambda of the Gauss-Newton step, relative to J^T J's mean diagonal", low=1e-3
    )
    window: int = option(
        256, "samples behind a step: more make it surer, fewer make it quicker", low=1
    )
    jacobian_trust: float = option(
        0.5,
        "t, share of the features' predicted move that is believed: below 1, errors of J stay "
        "bounded",
        low=0,
        high=1,
    )
    furthest: float = option(
        0.5, "from the source, as a share of |theta_S|: no drift asked for more", low=0
    )
    large_step: float = option(
        0.01, "of |theta_S|: after a smaller step the batch is not answered again", low=0
    )
    sureness_power: float = option(
        8.0,
        "power of the answers' sureness, (E sum p_i^2)^8, by which an uneven mix of classes "
        "counts: fog leaves a sureness of 0.6 to 0.7, which then counts next to nothing",
        low=0,
    )
    own_sureness: float = option(
        3.0,
        "that power where images have moves of their own: the stream's may then be careful",
        low=0,
    )
    content_drift: float = option(
        0.2,
        "squared drift of the stem, in units of sigma_S^2, from which on a move of later layers is "
        "no longer taken for content that the stream does not show",
        low=1e-6,
    )
    content_weight: float = option(
        2.0, "times the spread that a stream lacks, as variance of its mean", low=0
    )
    content_power: float = option(
        6.0, "power of the answers' sureness by which few classes explain a lack of spread", low=0
    )
    content_mix: float = option(
        0.25, "unevenness of the answers from which on they are a few classes' answers", low=1e-6
    )
    mirror_agreement: float = option(
        0.7,
        "least share of source images whose mirror image gets the same answer, for a mirror to be "
        "used",
        low=0,
        high=1,
    )
    mirror_parts: int = option(
        4, "parts in which a batch is mirrored, one after the other: less memory", low=1
    )
