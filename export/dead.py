"""Norms whose affines cannot change the logits: they stay as they are in the source."""

from collections.abc import Callable, Collection
from dataclasses import replace

from zotta_edge.errors import ZottaError
from zotta_edge.format import Layer, ModelInfo, Norm
from zotta_edge.graph.index import Graph

Say = Callable[[str], None]


def without_dead(graph: Graph, info: ModelInfo, dead: Collection[str], say: Say) -> ModelInfo:
    """`info` without norms that are dead in scale and shift; they become constants of `graph`.

    A norm of which only one is dead stays. PoolFormer subtracts what it pools, so the shift before
    that cancels out, but not the scale.

    Raises
    ------
    ZottaError
        If nothing would be left to adapt.
    """
    gone = [norm for norm in info.norms if norm.scale in dead and norm.shift in dead]
    if len(gone) == len(info.norms):
        raise ZottaError(
            "no scale or shift of any norm changes the logits: the weights behind them are zero, "
            "check that they were loaded"
        )
    layers = tuple(_without(layer, gone) for layer in info.layers)
    empty = {layer.feature for layer in layers if not layer.norms}
    names = {name for norm in gone for name in (norm.scale, norm.shift)}
    if names:
        say(f"{_listed(sorted(names))} stay fixed: they do not change the logits")
    if partly := sorted(set(dead) - names):
        say(f"{_listed(partly)} do not change the logits, their norms' other half does")
    _remove(graph.model.graph.input, names)
    _remove(graph.model.graph.output, empty)
    graph.finish()
    affines = {name: value for name, value in info.affines.items() if name not in names}
    return replace(info, layers=tuple(layer for layer in layers if layer.norms), affines=affines)


def _without(layer: Layer, gone: list[Norm]) -> Layer:
    return replace(layer, norms=tuple(norm for norm in layer.norms if norm not in gone))


def _remove(values, names: Collection[str]) -> None:  # type: ignore[no-untyped-def]
    for place in reversed(range(len(values))):
        if values[place].name in names:
            del values[place]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
