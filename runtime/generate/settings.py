"""All settings of a generating model, as one class."""

from dataclasses import dataclass
from typing import ClassVar

from zotta_edge.options import option
from zotta_edge.runtime.generate.methods.slot import SlotSettings
from zotta_edge.runtime.generate.methods.zotta import ZeroSettings
from zotta_edge.runtime.generate.sampling import SamplingSettings


@dataclass(frozen=True)
class GenerationSettings(SamplingSettings, ZeroSettings, SlotSettings):
    """What a prompt is answered with, and what methods learn by.

    >>> GenerationSettings().override(["max_tokens=8", "temperature=0.7"]).max_tokens
    8
    """

    noun: ClassVar[str] = "setting"

    max_tokens: int = option(64, "longest answer", low=1)
