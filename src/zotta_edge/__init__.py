"""Quantized image classifiers that keep adapting on the device, with forward passes only."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zotta_edge.errors import ZottaError
from zotta_edge.version import __version__

if TYPE_CHECKING:
    from zotta_edge.runtime.adaptive import AdaptiveModel, Result
    from zotta_edge.runtime.settings import Settings

__all__ = ["AdaptiveModel", "Result", "Settings", "ZottaError", "__version__"]

_LAZY = {
    "AdaptiveModel": "zotta_edge.runtime.adaptive",
    "Result": "zotta_edge.runtime.adaptive",
    "Settings": "zotta_edge.runtime.settings",
}


def __getattr__(name: str) -> Any:
    """Import the runtime when it is first used: `import zotta_edge` itself costs nothing."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'zotta_edge' has no attribute {name!r}")
