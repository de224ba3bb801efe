"""Which methods there are, found by name and imported when they are first asked for."""

from collections.abc import Mapping
from importlib import import_module

from zotta_edge.errors import ZottaError
from zotta_edge.runtime.generate.methods.contract import Method

METHODS: Mapping[str, str] = {  # name -> module.class in this package
    "none": "none.Plain",
    "zotta": "zotta.TokenEntropy",
    "perplexity": "zotta.InputPerplexity",
    "slot": "slot.Slot",
}


def find(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise ZottaError(f"no method for decoders is called {name}: there are {', '.join(METHODS)}")
    module, _, kind = METHODS[name].rpartition(".")
    method: type[Method] = getattr(import_module(f"{__package__}.{module}"), kind)
    return method
