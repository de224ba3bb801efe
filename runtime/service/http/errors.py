"""What a client is told when a request is not served: a status, one line, never a path."""

from collections.abc import Mapping


class ServiceError(Exception):
    """An answer other than the one asked for; becomes `{"error": "..."}`."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def busy(message: str) -> ServiceError:
    """503: nothing is wrong with the request, only with the moment."""
    return ServiceError(503, message, {"Retry-After": "1"})
