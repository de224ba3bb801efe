"""The dashboard: one file, under a policy that lets nothing run but what is written in it."""

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers."""
    content = Path(__file__).with_name("dashboard.html").read_bytes()
    return content, {"Content-Security-Policy": _policy(content), "Cache-Control": "no-cache"}


def _policy(content: bytes) -> str:
    """Scripts and styles by their hash: a name in a model file can never become either."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(content, b'script')}",
            f"style-src {_hash(content, b'style')}",
            "connect-src 'self'",
            "img-src blob: data:",  # what was dropped, and the icon
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _hash(content: bytes, tag: bytes) -> str:
    (inline,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), content, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(inline).digest()).decode()}'"
