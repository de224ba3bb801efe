"""All settings of a generating model, as one class."""

from dataclasses import dataclass
from typing import ClassVar

from zotta_edge.options import Option, Options, describe, option
from zotta_edge.runtime.generate.methods.slot import SlotSettings
from zotta_edge.runtime.generate.methods.zotta import ZeroSettings
from zotta_edge.runtime.generate.sampling import SamplingSettings
from zotta_edge.runtime.generate.surprise import SurpriseSettings
from zotta_edge.runtime.watch.guard import GuardSettings


@dataclass(frozen=True)
class GenerationSettings(SamplingSettings, SurpriseSettings, ZeroSettings, SlotSettings):
    """What a prompt is answered with, and what methods learn by.

    >>> GenerationSettings().override(["max_tokens=8", "temperature=0.7"]).max_tokens
    8
    """

    noun: ClassVar[str] = "setting"

    max_tokens: int = option(64, "longest answer", low=1)


_READERS: dict[str, tuple[type[Options], ...]] = {
    "zotta, perplexity, slot": (SurpriseSettings, GuardSettings),
    "zotta, perplexity": (ZeroSettings,),
    "slot": (SlotSettings,),
}


def by_methods() -> dict[str, list[Option]]:
    """Every setting under the names of the methods that read it, for a listing.

    >>> {title: options[0].name for title, options in by_methods().items()}["slot"]
    'slot_steps'
    """
    left = {each.name: each for each in describe(GenerationSettings)}
    groups = {
        methods: [
            left.pop(each.name) for kind in kinds for each in describe(kind) if each.name in left
        ]
        for methods, kinds in _READERS.items()
    }
    return {"every method": list(left.values()), **groups}
