"""Numbers of the command line."""

import argparse

_MOST = 10**9  # of images, tokens, ...: what more is asked for is a slip


def positive(text: str) -> int:
    """A whole number from 1 up, for argparse.

    >>> positive("16")
    16
    """
    value = int(text)
    if not 1 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text[:20]} is not from 1 to {_MOST}")
    return value
