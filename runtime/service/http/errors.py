"""Errors that a client is told: a status and one line, which never holds a path."""

from collections.abc import Mapping


class ServiceError(Exception):
    """Becomes a response with this status and `{"error": message}`."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def busy(message: str) -> ServiceError:
    """A 503: the same request may succeed in a second."""
    return ServiceError(503, message, {"Retry-After": "1"})
