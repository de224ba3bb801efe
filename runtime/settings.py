"""Every setting of every method under one roof: `Settings(pairs=2)`, TOML, `--set pairs=2`.

A constant is declared beside the code that reads it, in the dataclass of a method or of a part that
several methods share. All names differ, so one flat list serves all methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from zotta_edge.options import Option, describe
from zotta_edge.runtime.methods.alpha_bn import AlphaBatchNormSettings
from zotta_edge.runtime.methods.bn_adapt.method import BatchNormSettings
from zotta_edge.runtime.methods.contract import MethodSettings
from zotta_edge.runtime.methods.eva0 import Eva0Settings
from zotta_edge.runtime.methods.foa.settings import FoaSettings
from zotta_edge.runtime.methods.fozo import FozoSettings
from zotta_edge.runtime.methods.lame import LameSettings
from zotta_edge.runtime.methods.leantta import LeanTtaSettings
from zotta_edge.runtime.methods.moments.settings import MomentSettings
from zotta_edge.runtime.methods.pea.method import PeaSettings
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.t3a import T3ASettings
from zotta_edge.runtime.methods.unmix_tns.method import UnMixSettings
from zotta_edge.runtime.methods.zoa.settings import ZoaSettings
from zotta_edge.runtime.methods.zoo import ZooSettings
from zotta_edge.runtime.methods.zotta import ZottaSettings

OF_METHOD: Mapping[str, type[MethodSettings]] = {
    "primed": PrimedSettings,
    "moments": MomentSettings,
    "zotta": ZottaSettings,
    "zoo": ZooSettings,
    "bn_adapt": BatchNormSettings,
    "alpha_bn": AlphaBatchNormSettings,
    "leantta": LeanTtaSettings,
    "unmix_tns": UnMixSettings,
    "lame": LameSettings,
    "t3a": T3ASettings,
    "foa": FoaSettings,
    "zoa": ZoaSettings,
    "fozo": FozoSettings,
    "eva0": Eva0Settings,
    "pea": PeaSettings,
    "neo": MethodSettings,
    "none": MethodSettings,
}


@dataclass(frozen=True)
class Settings(
    PrimedSettings,
    MomentSettings,
    ZottaSettings,
    ZooSettings,
    BatchNormSettings,
    AlphaBatchNormSettings,
    LeanTtaSettings,
    UnMixSettings,
    LameSettings,
    T3ASettings,
    FoaSettings,
    ZoaSettings,
    FozoSettings,
    Eva0Settings,
    PeaSettings,
):
    """All settings, by name; `zotta-edge adapt --list-settings` explains each.

    A method reads those of its own dataclass (`OF_METHOD`) and ignores the others.

    >>> settings = Settings(pairs=2, always=True)
    >>> settings.override(["learning_rate=0.02"]).learning_rate
    0.02
    >>> Settings(pairs=0)
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: pairs is 0: expected a number at least 1
    """

    noun: ClassVar[str] = "setting"


def by_methods() -> dict[str, list[Option]]:
    """Every setting under the names of the methods that read it, for a listing.

    >>> [option.name for option in by_methods()["every method"]][-3:]
    ['seed', 'layers', 'episodic']
    """
    names = {method: _names(kind) for method, kind in OF_METHOD.items()}
    groups: dict[tuple[str, ...], list[Option]] = {}
    for option in describe(Settings):
        readers = tuple(method for method, known in names.items() if option.name in known)
        groups.setdefault(readers, []).append(option)
    order = list(OF_METHOD)
    titles = {tuple(order): "every method"}
    by_reader = sorted(groups, key=lambda readers: (-len(readers), order.index(readers[0])))
    return {titles.get(readers, ", ".join(readers)): groups[readers] for readers in by_reader}


def _names(kind: type[MethodSettings]) -> set[str]:
    return {option.name for option in describe(kind)}
