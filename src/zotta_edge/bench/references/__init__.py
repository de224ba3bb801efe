"""What back-propagation reaches: published systems in torch fp32, to compare with, never to ship.

    network = Network(module, info)           # any torch classifier, and its model file's info
    tent = find("tent")(network, source, seed=0)
    logits = tent.predict(images)             # float32 [batch, C, H, W], already normalized

Each is written from its paper. The caller decides on torch's threads.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from zotta_edge.bench.references.network import Network
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats

__all__ = ["REFERENCES", "Network", "Reference", "find"]

REFERENCES: Mapping[str, str] = {  # name -> file.class, imported when it is first asked for
    "none": "none.NoAdaptation",
    "backprop": "backprop.Backprop",
    "backprop+entropy": "backprop.BackpropWithEntropy",
    "tent": "tent.Tent",
    "eata": "eata.Eata",
    "eata-last": "eata.EataLast",
    "eata-gc": "eata.EataCheckpointing",
    "sar": "sar.Sar",
    "deyo": "deyo.Deyo",
    "cotta": "cotta.Cotta",
    "roid": "roid.Roid",
}


class Reference(Protocol):
    """One stream's adaptation. It trains `network` in place, so each needs one of its own."""

    def __init__(self, network: Network, source: Floats, seed: int = 0) -> None:
        """`source`: clean images as `predict` takes them; not all systems look at them."""
        ...

    def predict(self, images: Floats) -> Floats:
        """Logits [batch, class] of a normalized batch [batch, C, H, W], learning from it."""
        ...

    def reset(self) -> None:
        """Be as new: the same stream gives the same answers again, bit for bit."""
        ...

    @property
    def passes(self) -> float:
        """Full forward-pass equivalents x images since it was made; `Network` says how counted."""
        ...


def find(name: str) -> type[Reference]:
    """The reference of that name."""
    if name not in REFERENCES:
        raise ZottaError(f"no reference is called {name}: there are {', '.join(REFERENCES)}")
    file, kind = REFERENCES[name].split(".")
    reference: type[Reference] = getattr(import_module(f"{__name__}.{file}"), kind)
    return reference
