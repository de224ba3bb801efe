"""Fields of the kind they are declared as: JSON holds anything."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_kinds(*parts: Any) -> None:
    """Refuse dataclasses with a text, number, flag or choice that is another kind of thing.

    >>> from zotta_edge.format import Recipe
    >>> check_kinds(Recipe("int8", "dynamic", "any", machine=3))
    Traceback (most recent call last):
    ValueError: machine is 3
    """
    for part in parts:
        for name, kind in get_type_hints(type(part)).items():
            if not _fits(getattr(part, name), kind):
                raise ValueError(f"{name} is {reprlib.repr(getattr(part, name))}")


def check_numbers(values: Mapping[str, float]) -> None:
    """Refuse a mapping that is none, or whose values are no numbers."""
    for name, value in values.items():
        if not _fits(value, float):
            raise ValueError(f"{name} is {reprlib.repr(value)}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a plain kind; of others nothing is said."""
    if get_origin(kind) is Literal:
        return type(value) is str and value in get_args(kind)
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    if type(value) is str:
        value.encode()  # JSON can write half of a surrogate pair, which no answer can hold
    return kind not in (str, int, bool) or type(value) is kind
