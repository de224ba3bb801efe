"""The dashboard: a single file, and a policy that lets only its own script and style run."""

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
    """Allow script and style by their hash, so that no text in a model file can run."""
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
