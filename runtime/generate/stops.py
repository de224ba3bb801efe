"""Texts that end an answer."""

from collections.abc import Iterable, Iterator


def before(pieces: Iterable[str], stops: tuple[str, ...]) -> Iterator[str]:
    """The pieces of a text up to where one of `stops` begins; ends as soon as one is complete.

    What may turn out to be the beginning of one is held back.

    >>> list(before(["12", " e", "nd of", " it"], ("end",)))
    ['12', ' ']
    """
    held = ""
    for piece in pieces:
        held += piece
        found = min((at for stop in stops if (at := held.find(stop)) >= 0), default=-1)
        if found >= 0:
            yield from [held[:found]] if found else []
            return
        free = len(held) - max((_beginning(held, stop) for stop in stops), default=0)
        yield held[:free]
        held = held[free:]
    if held:
        yield held


def _beginning(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the first ones of `stop`."""
    longest = min(len(stop) - 1, len(text))  # a stop of megabytes costs no more than the text
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
