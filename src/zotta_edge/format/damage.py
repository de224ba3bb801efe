"""Whatever goes wrong while a file's metadata is read becomes one line."""

import binascii
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from zotta_edge.errors import ZottaError

_SIGNS = (
    *(KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError),
    *(binascii.Error, zlib.error),
)


@contextmanager
def refusing_damage(path: object) -> Iterator[None]:
    try:
        yield
    except _SIGNS as error:
        detail = " ".join(str(error).split())[:200]
        raise ZottaError(
            f"{path} is damaged ({type(error).__name__}: {detail}): export it again"
        ) from error


def refuse_eyes(metadata: Mapping[str, str], path: object) -> None:
    if metadata.get("zotta.kind") == "vision":
        decoder = str(path).replace(".vision.onnx", ".onnx")
        raise ZottaError(f"{path} are the eyes of a decoder: name {decoder} beside it")


def refuse_other_version(found: object, known: int, path: object) -> None:
    if found != str(known):
        raise ZottaError(
            f"{path} has format {found}, this version reads {known}: "
            "export it again, or install the matching zotta-edge"
        )
