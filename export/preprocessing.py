"""How the source's images are prepared: as the flags or the source say, else as a trial finds."""

from dataclasses import replace
from typing import Any

from zotta_edge.errors import ZottaError
from zotta_edge.export.images import Sampled
from zotta_edge.export.sources.classifier import Classifier, Say
from zotta_edge.export.trial import find_preprocessing
from zotta_edge.format import Interpolation, Preprocessing, Trial, Tried
from zotta_edge.presets import PRESETS, normalised

_LEAST = 8  # images that a trial needs
_RESIZE = 256 / 224  # shorter side before the crop, where nobody says otherwise


def stated(
    known: Preprocessing | None,
    classifier: Classifier,
    *,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    order: str | None = None,
    resize: int | None = None,
    interpolation: Interpolation | None = None,
) -> Preprocessing:
    """From the flags, else from the source, else ImageNet's, which are then `assumed`."""
    height, width, channels = classifier.height, classifier.width, classifier.channels
    base = known or _assumed(height, width, channels)
    if height != width:  # a crop of the resized shorter side need not be that wide or high
        base = replace(base, resize=None)
    base = replace(
        base,
        height=height,
        width=width,
        layout=classifier.layout,
        resize=resize or base.resize,
        interpolation=interpolation or base.interpolation,
    )
    means = _each(mean or base.mean, channels, "--mean")
    stds = _each(std or base.std, channels, "--std")
    assumed = base.assumed and not (mean and std)
    return replace(normalised(base, means, stds, order or base.order), assumed=assumed)


def _assumed(height: int, width: int, channels: int) -> Preprocessing:
    mean, std, _ = PRESETS["imagenet" if channels == 3 else "none"]
    return Preprocessing(
        height, width, mean, std, round(min(height, width) * _RESIZE), assumed=True
    )


def _each(values: tuple[float, ...], channels: int, flag: str) -> tuple[float, ...]:
    if len(values) not in (1, channels):
        raise ZottaError(f"{flag} has {len(values)} values, the model reads {channels} channels")
    return values * channels if len(values) == 1 else values


def found(
    assumed: Preprocessing, data: Sampled | None, session: Any, say: Say, blind: bool = False
) -> tuple[Preprocessing, Trial | None]:
    """By trial where there are images; otherwise as assumed, with a warning.

    A network without class scores is `blind`: nothing tells how much its answers say.
    """
    if assumed.channels not in (1, 3):
        raise ZottaError(
            f"the source does not say how its {assumed.channels}-channel images are normalised: "
            "give --mean and --std"
        )
    if data is not None and len(data.images) >= _LEAST and not blind:
        say("the source does not say how its images are normalised: trying the usual ways")
        p, trial = find_preprocessing(session, assumed, data)
        if not trial.certain:  # otherwise the summary tells
            say(told(trial))
        return p, trial
    if assumed.channels == 1:
        raise ZottaError(
            "the source does not say how its 1-channel images are normalised: give --mean and "
            f"--std, or at least {_LEAST} images with --data to find it by trial"
        )
    more = f", or {_LEAST} images or more with --data to find it by trial"
    say(
        "warning: the source does not say how its images are normalised; ImageNet's mean and std "
        "are assumed: give --preprocessing or --mean and --std"
        + (" (detectors mostly take `none`)" if blind else more)
    )
    return assumed, None


def told(trial: Trial) -> str:
    """The choice and the evidence, in a line."""
    best, second, *_ = trial.tried
    text = f"preprocessing found: {_result(best)}, then {_result(second)}"
    text += f", on {best.images} images; resampled, {trial.certainty:.0%} prefer the first"
    return text if trial.certain else f"{text}: the images hardly tell, give --preprocessing"


def _result(tried: Tried) -> str:
    right = "" if tried.accuracy is None else f", {tried.accuracy:.0%} right"
    return f"{tried.name} ({tried.information:.2f} nats an image{right})"
