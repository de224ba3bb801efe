"""The model as a service: the Open Inference Protocol, adaptation in the open, one writer.

>>> from zotta_edge.runtime.service import create_app
>>> app = create_app(AdaptiveModel.load("vit_int8.onnx"), "vit")  # an ASGI app, to run or to mount
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zotta_edge.errors import ZottaError

if TYPE_CHECKING:
    from zotta_edge.runtime.service.config import Config
    from zotta_edge.runtime.service.http.app import create_app

__all__ = ["Config", "create_app"]

_LAZY = {"create_app": "http.app", "Config": "config"}


def __getattr__(name: str) -> Any:
    """Import on first use: a command line's help needs no web server."""
    if name not in _LAZY:
        raise AttributeError(f"module 'zotta_edge.runtime.service' has no attribute {name!r}")
    try:
        return getattr(import_module(f"zotta_edge.runtime.service.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        raise ZottaError(
            f"the service needs {error.name}, which is not installed: "
            "pip install 'zotta-edge[serve]'"
        ) from error
