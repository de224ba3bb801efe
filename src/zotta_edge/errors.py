"""What a person can get wrong, as one exception type."""


class ZottaError(Exception):
    """Bad input: the message names the culprit, the expectation and the fix, in one line.

    The command line prints it and exits with 1; anything else that escapes is a defect of ours.
    """


class NotFiniteError(ZottaError):
    """A pass gave numbers that are not finite, or whose squares are not: nothing is learned."""


def one_line(error: BaseException) -> str:
    """What another library says, short enough to be quoted in a message of ours.

    >>> one_line(ValueError("wrong\\n  shape"))
    'wrong shape'
    """
    return " ".join(str(error).split())[:300] or type(error).__name__
