"""What a person can get wrong, as one exception type."""


class ZottaError(Exception):
    """Bad input: the message names the culprit, the expectation and the fix, in one line.

    The command line prints it and exits with 1; anything else that escapes is a defect of ours.
    """


class NotFiniteError(ZottaError):
    """A pass gave numbers that are not finite, or whose squares are not: nothing is learned."""
