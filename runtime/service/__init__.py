"""Serves a model that adapts: Open Inference Protocol, metrics and a dashboard.

>>> from zotta_edge import AdaptiveModel
>>> from zotta_edge.models import embedded
>>> from zotta_edge.runtime.service import Config, create_app
>>> app = create_app(AdaptiveModel.load(embedded.MODEL), "digits", Config(adapt="off"))
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
