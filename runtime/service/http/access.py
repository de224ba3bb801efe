"""Access: a token for everything that changes the model, and no web pages but our own."""

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from zotta_edge.runtime.service.config import is_local
from zotta_edge.runtime.service.http.errors import ServiceError

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Access:
    """Refuses requests without the token, and those of other web pages.

    Every POST needs the token, predictions included: the model learns from them. A browser on
    this machine lets any web page send requests to 127.0.0.1; such a page is known by its
    `Origin`, or by its `Host` if its own name leads to 127.0.0.1.

    Parameters
    ----------
    token
        None: no token is needed.
    only_local
        Refuse requests to other names than localhost.

    Examples
    --------
    >>> access = Access("0123456789", only_local=True)
    >>> access.check("POST", {"host": "localhost", "authorization": "Bearer 0123456789"})
    """

    def __init__(self, token: str | None, only_local: bool) -> None:
        self._token = None if token is None else token.encode()
        self._only_local = only_local

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        host = headers.get("host")  # browsers always send it
        if self._only_local and host is not None and not is_local(_hostname(host)):
            raise ServiceError(403, "this service answers to localhost only")
        if method in _SAFE:
            return
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) != host:
            raise ServiceError(403, "requests from other web pages are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise ServiceError(403, "requests from other web pages are refused")
        self._check_token(headers.get("authorization", ""))

    def _check_token(self, authorization: str) -> None:
        if self._token is None:
            return
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() != "bearer" or not same:
            raise ServiceError(
                401,
                "this needs the header Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )


def _hostname(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _host_of(origin: str) -> str:
    """The name and port in an Origin header, as a Host header would have them."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
