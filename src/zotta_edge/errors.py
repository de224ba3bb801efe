"""What a person can get wrong, as one exception type."""

from collections.abc import Iterator
from contextlib import contextmanager


class ZottaError(Exception):
    """Bad input: the message names the culprit, the expectation and the fix, in one line.

    The command line prints it and exits with 1; anything else that escapes is a defect of ours.
    """


@contextmanager
def quoting(what: str) -> Iterator[None]:
    """One line for a library whose errors have no class of their own; some panic in Rust.

    >>> with quoting("no tokenizer"):
    ...     raise Exception("line 1,\\n  column 2")
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: no tokenizer: line 1, column 2
    """
    try:
        yield
    except (ZottaError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic is not even an Exception
        raise ZottaError(f"{what}: {one_line(error)}") from error


class NotFiniteError(ZottaError):
    """A pass gave numbers that are not finite, or whose squares are not: nothing is learned."""


def one_line(error: BaseException) -> str:
    """What another library says, short enough to be quoted in a message of ours.

    >>> one_line(ValueError("wrong\\n  shape"))
    'wrong shape'
    """
    return " ".join(str(error).split())[:300] or type(error).__name__


def visible(text: str) -> str:
    """On one line, with no character that acts on a terminal: names of files hold any of them.

    >>> visible("a\\n\\x1b[2Jb.png")
    'a\\\\n\\\\x1b[2Jb.png'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
