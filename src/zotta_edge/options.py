"""Options: dataclass fields that explain and check themselves, from code, TOML, texts or variables.

@dataclass(frozen=True)
class Config(Options):
    port: int = option(8080, "where to listen", low=0)
"""

import difflib
import math
import reprlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from zotta_edge.errors import ZottaError
from zotta_edge.files import read_text

_EXPECTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    tuple: "a list of layer indices such as [3, 4, 5]",
}
_SHOWN = 40  # characters of an unknown name


def option(
    default: Any, about: str, low: float = -math.inf, high: float = math.inf, metavar: str = ""
) -> Any:
    """A dataclass field with an explanation and the closed range its numbers must lie in.

    Parameters
    ----------
    default
        Value when nothing is given.
    about
        Half a sentence for `--help` and listings.
    low, high
        Bounds, both allowed, of a number or of each number in a list.
    metavar
        What `--help` calls the value; by default the field's name in capitals.
    """
    return field(
        default=default, metadata={"about": about, "low": low, "high": high, "metavar": metavar}
    )


@dataclass(frozen=True)
class Option:
    """One field of an `Options` class: int, float, bool, str, Path, a tuple of ints or a choice."""

    name: str
    default: Any
    kind: type
    choices: tuple[str, ...]
    optional: bool
    about: str
    low: float
    high: float
    metavar: str

    def check(self, value: Any) -> Any:
        """`value` as this option's type, or a `ZottaError` that names the option."""
        if value is None and self.optional:
            return None
        if self.choices and value not in self.choices:
            self._refuse(value, f"one of {', '.join(self.choices)}")
        typed = _convert(value, self.kind)
        if typed is None:
            self._refuse(value, _EXPECTED[self.kind])
        for number in typed if isinstance(typed, tuple) else (typed,):
            if type(number) in (int, float):
                self._check_range(number)
        return typed

    def parse(self, text: str) -> Any:
        """A text as this option's type where it reads as one; `check` refuses the others."""
        if self.kind in (str, Path):
            return text
        try:
            return self.kind(text) if self.kind in (int, float) else _toml_value(text)
        except ValueError:
            return text

    def _check_range(self, number: float) -> None:
        if not self.low <= number <= self.high or abs(number) == math.inf:
            low, high = f"{self.low:g}", f"{self.high:g}"
            limits = f"at least {low}" if self.high == math.inf else f"from {low} to {high}"
            raise ZottaError(f"{self.name} is {_shown(number)}: expected a number {limits}")

    def _refuse(self, value: Any, expected: str) -> None:
        raise ZottaError(f"{self.name} is {_shown(value)}: expected {expected}")


@dataclass(frozen=True)
class Options:
    """Base class: checks every field when made, and reads values from wherever people write them.

    >>> @dataclass(frozen=True)
    ... class Camera(Options):
    ...     rate: float = option(25.0, "pictures a second", low=1)
    ...     mode: Literal["grey", "colour"] = option("colour", "what is read")
    >>> Camera().override(["rate=5", "mode=grey"])
    Camera(rate=5.0, mode='grey')
    >>> Camera().from_environment({"CAM_RATE": "12.5"}, prefix="CAM_").rate
    12.5
    >>> Camera(rate=0)
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: rate is 0.0: expected a number at least 1
    """

    noun: ClassVar[str] = "option"  # what error texts call one of them

    def __post_init__(self) -> None:
        for each in describe(type(self)):
            object.__setattr__(self, each.name, each.check(getattr(self, each.name)))

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a flat TOML file: `rate = 5`, `mode = "grey"`, ..."""
        table = read_toml(path)
        with blaming(path):
            return cls().replace(table)

    def replace(self, values: Mapping[str, Any]) -> Self:
        """The same with some values changed; an unknown name is an error."""
        known = [each.name for each in describe(type(self))]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name[:_SHOWN], known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ZottaError(f"no {self.noun} is called {name[:_SHOWN]}: {hint}")
        return replace(self, **values)

    def override(self, assignments: Iterable[str]) -> Self:
        """Apply `name=value` texts from a command line; the value is TOML, or a bare word."""
        return self.replace(dict(self._assignment(text) for text in assignments))

    def from_environment(self, environment: Mapping[str, str], prefix: str) -> Self:
        """Apply variables such as `PREFIX_RATE=5`; empty ones count as unset."""
        changed = self
        for each in describe(type(self)):
            variable = prefix + each.name.upper()
            if text := environment.get(variable, ""):
                with blaming(variable):
                    changed = changed.replace({each.name: each.parse(text)})
        return changed

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _assignment(self, text: str) -> tuple[str, Any]:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign and value):
            raise ZottaError(f"cannot read the {self.noun} {text!r}: expected name=value")
        return name, _toml_value(value)


def describe(options: type[Options]) -> tuple[Option, ...]:
    """Every option of a class, in order, for listings and command lines."""
    types = get_type_hints(options)
    return tuple(
        Option(item.name, item.default, *_shape(types[item.name]), **item.metadata)
        for item in fields(options)
    )


def listing(groups: Mapping[str, Iterable[Option]]) -> str:
    """Options under their titles, a line each."""
    lines = []
    for title, options in groups.items():
        lines.append(f"{title}:")
        lines += [f"  {each.name:<20} {each.default!s:<10} {each.about}" for each in options]
    return "\n".join(lines)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file, or one line that says what is wrong with it."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        raise ZottaError(f"{path} is not valid TOML: {error}") from error


@contextmanager
def blaming(place: str | Path) -> Iterator[None]:
    """Put the file or variable that a bad value came from in front of the error."""
    try:
        yield
    except ZottaError as error:
        raise ZottaError(f"{place}: {error}") from error


def _shape(annotation: Any) -> tuple[type, tuple[str, ...], bool]:
    """The type of the values, the words to choose from, and whether None is allowed."""
    options = get_args(annotation)
    if get_origin(annotation) is Literal:
        return str, options, False
    if type(None) in options:
        return _shape(options[0])[0], (), True
    return get_origin(annotation) or annotation, (), False


def _convert(value: Any, kind: type) -> Any:
    """`value` as `kind`, without guessing (an integer will do for a float), or None."""
    if kind is tuple:
        whole = isinstance(value, list | tuple) and all(type(item) is int for item in value)
        return tuple(sorted(set(value))) if whole and value else None
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else None
    if kind is float and type(value) is int:
        with suppress(OverflowError):  # hundreds of digits
            return float(value)
    return value if type(value) is kind else None


def _toml_value(text: str) -> Any:
    """A TOML value, or the text itself where it is a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _shown(value: Any) -> str:
    """A value in an error: requests may hold megabytes, and lists in lists in lists."""
    return reprlib.repr(value)
