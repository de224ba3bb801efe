"""What a state is made of: arrays by name, `part.field`; single numbers are arrays of one."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

_TEXT = 16  # bytes, padded with zeros: the shape of a field never changes


class Stateful(Protocol):
    """A part of a method that a state file carries."""

    def reset(self) -> None: ...

    def state(self) -> dict[str, NDArray[Any]]: ...

    def restore(self, state: Arrays) -> None: ...


def joined(parts: Mapping[str, Arrays]) -> dict[str, NDArray[Any]]:
    """The arrays of several parts under `part.field`; `section` takes one part out again."""
    return {f"{part}.{name}": array for part, own in parts.items() for name, array in own.items()}


def section(state: Arrays, part: str) -> dict[str, NDArray[Any]]:
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }


def states_of(parts: Mapping[str, Stateful]) -> dict[str, NDArray[Any]]:
    return joined({name: part.state() for name, part in parts.items()})


def restore_all(parts: Mapping[str, Stateful], state: Arrays) -> None:
    """Restore every part; one that the state does not hold (see `row`) starts anew."""
    for name, part in parts.items():
        own = section(state, name)
        part.restore(own) if own else part.reset()


def row(table: str, key: str) -> str:
    """The name of a part that an older file may lack, such as a filter it did not know yet."""
    return f"{table}[{key}]"


def text_to_array(text: str) -> NDArray[np.uint8]:
    content = text.encode()
    if len(content) > _TEXT:
        raise ValueError(f"{text!r} is longer than {_TEXT} bytes")
    return np.frombuffer(content.ljust(_TEXT, b"\0"), np.uint8)


def text_from_array(array: NDArray[np.uint8], known: Iterable[str]) -> str:
    """One of the known texts; anything else was not written by this program."""
    text = array.tobytes().rstrip(b"\0").decode()
    if text not in known:
        raise ValueError(f"unknown name {text!r}")
    return text


_HALF = (1 << 64) - 1


def rng_to_array(rng: Generator) -> NDArray[np.uint64]:
    """A PCG64 generator's 128-bit numbers in halves, and its spare 32 bits."""
    state = rng.bit_generator.state
    numbers = (state["state"]["state"], state["state"]["inc"])
    halves = [half for number in numbers for half in (number >> 64, number & _HALF)]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def rng_from_array(numbers: NDArray[np.uint64]) -> Generator:
    a, b, c, d, has_uint32, uinteger = (int(number) for number in numbers)
    bits = PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": a << 64 | b, "inc": c << 64 | d},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return Generator(bits)
