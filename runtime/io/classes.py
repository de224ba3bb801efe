"""The classes of a model: which number a name, a number or a class folder stands for."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from zotta_edge.errors import ZottaError
from zotta_edge.format import ModelInfo

Label = str | int  # a name or a number as text, or a number
_DIGITS = 9  # of a class number: no model has more classes


@dataclass(frozen=True)
class Classes:
    """The classes that a model tells apart.

    Parameters
    ----------
    count
        How many there are.
    names
        Their names in order, or nothing where the model file has none.

    Examples
    --------
    >>> pets = Classes(2, ("cat", "dog"))
    >>> pets.number("dog"), pets.number("0"), pets.number(1)
    (1, 0, 1)
    >>> pets.refusal("dgo")
    "'dgo', which is no class of the model: did you mean 'dog'?"
    """

    count: int
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, info: ModelInfo) -> "Classes":
        """Those of a model file."""
        return cls(info.classes, info.labels)

    def number(self, label: Label) -> int:
        """The number of a class; a label that is a name and a number is taken as a name."""
        known = self.find(label)
        if known is None:
            raise ZottaError(f"the label is {self.refusal(label)}")
        return known

    def find(self, label: Label) -> int | None:
        """The number of a class, or None if the model has no such class."""
        if label in self._by_name:
            return self._by_name[str(label)]
        if isinstance(label, str) and not (label.isdecimal() and len(label) <= _DIGITS):
            return None
        return int(label) if 0 <= int(label) < self.count else None

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def refusal(self, label: Label) -> str:
        """Why a label is none of the model's, and what may have been meant."""
        shown = label[:80] if isinstance(label, str) else label
        return f"{shown!r}, which is no class of the model: {self._advice(str(label))}"

    def _advice(self, label: str) -> str:
        if label.isdecimal():
            return f"it knows 0 to {self.count - 1}; are these labels meant for another model?"
        if not self.names:
            return (
                "its file has no class names (`zotta-edge export --classes FILE` stores them), so "
                f"labels are numbers from 0 to {self.count - 1}"
            )
        close = get_close_matches(label, self.names, 1)
        few = ", ".join(self.names[:3])
        return f"did you mean {close[0]!r}?" if close else f"its classes are {few}, ..."


def folder_numbers(folders: Iterable[Label], classes: Classes, origin: str) -> dict[Label, int]:
    """The class of each class folder: by its name or number, or in order if there is one a class.

    Examples
    --------
    >>> folder_numbers(["dog", "cat"], Classes(2, ("cat", "dog")), "the folders of pets")
    {'cat': 0, 'dog': 1}
    >>> folder_numbers(["n02", "n01"], Classes(2), "the folders of pets")
    {'n01': 0, 'n02': 1}
    """
    ordered = sorted(set(folders), key=str)
    numbers = {folder: classes.find(folder) for folder in ordered}
    unknown = [folder for folder, number in numbers.items() if number is None]
    if not unknown:
        return {folder: classes.number(folder) for folder in ordered}
    if len(unknown) < len(ordered):
        raise ZottaError(f"{origin} include {classes.refusal(unknown[0])}")
    if len(ordered) == classes.count:
        return {folder: number for number, folder in enumerate(ordered)}
    raise ZottaError(
        f"{origin} are {len(ordered)}, the model has {classes.count} classes and knows none of "
        "them: name them as its classes or by number, or give --labels CSV; `zotta-edge bench` "
        "also takes --classes FILE, the folder name of each class a line"
    )
