"""Which layers to adapt: Distribution-Robust Layer Selection and the rules it is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

from zotta_edge.errors import ZottaError
from zotta_edge.format import Layer

Rule = Literal["purity", "all", "parameters", "gradient", "influence"]
RULES: tuple[Rule, ...] = get_args(Rule)
NO_CLUSTERING = (
    "choosing layers by purity needs scikit-learn, which is not installed: name the layers with "
    "--layers, or calibrate on a machine with pip install 'zotta-edge[calibrate]'"
)


@dataclass(frozen=True)
class Choice:
    """How to choose; the defaults are the paper's."""

    rule: Rule = "purity"
    tau: float = 0.6  # layers whose purity is at least this are candidates
    max_layers: int = 3  # of the candidates the deepest, under other rules the highest scores
    keep_shallow: bool = False  # whether the first layer may be a candidate
    layers: tuple[int, ...] | None = None  # the answer itself: no rule is asked

    @property
    def compares(self) -> bool:
        """Whether drifted images are looked at."""
        return self.layers is None and self.rule in ("purity", "gradient", "influence")

    def check(self, count: int) -> None:
        """Refuse what cannot be meant for a model of `count` layers."""
        if self.rule not in RULES:
            raise ZottaError(f"unknown rule {self.rule}: choose one of {', '.join(RULES)}")
        if not 0.5 <= self.tau <= 1:
            raise ZottaError(f"tau is {self.tau:g}: purity lies between 0.5 and 1")
        if self.max_layers < 1:
            raise ZottaError(f"max-layers is {self.max_layers}: at least one layer must be chosen")
        if self.layers == ():
            raise ZottaError("the list of layers names no layer")
        if self.layers is None and self.rule == "purity" and find_spec("sklearn") is None:
            raise ZottaError(NO_CLUSTERING)
        for index in self.layers or ():
            if not 0 <= index < count:
                raise ZottaError(f"there is no layer {index}: the model has 0 to {count - 1}")


@dataclass(frozen=True)
class Selection:
    """The layers chosen, and what each layer scored under the rule."""

    chosen: tuple[int, ...]
    scores: tuple[float, ...] = ()  # one a layer; empty when nothing was measured
    note: str = ""  # what a person should know about the choice
    seconds: tuple[float, float] = (0.0, 0.0)  # of the forward passes, of the clustering


def by_purity(purity: Sequence[float], layers: Sequence[Layer], choice: Choice) -> Selection:
    """U = {l | P_l >= tau}, of which the deepest; the purest layer when U is empty."""
    allowed = [i for i in adaptable(layers) if i > 0 or choice.keep_shallow or len(layers) == 1]
    if not allowed:
        raise ZottaError("only the first layer has norms: allow it with --keep-shallow")
    candidates = [index for index in allowed if purity[index] >= choice.tau]
    if candidates:
        return Selection(tuple(candidates[-choice.max_layers :]), tuple(purity))
    purest = max(allowed, key=lambda index: purity[index])
    note = (
        f"no layer that may be chosen reaches tau = {choice.tau:g}; the purest, "
        f"{layers[purest].name} ({purity[purest]:.3f}), is taken"
    )
    return Selection((purest,), tuple(purity), note)


def by_score(scores: Sequence[float], layers: Sequence[Layer], choice: Choice) -> Selection:
    """The layers that score highest."""
    ranked = sorted(adaptable(layers), key=lambda index: -scores[index])
    return Selection(tuple(sorted(ranked[: choice.max_layers])), tuple(scores))


def adaptable(layers: Sequence[Layer]) -> list[int]:
    """Layers that a rule may choose: those with norms, without the norm before the classifier.

    That last norm is no block: all it can do is rescale what the classifier reads.
    """
    last = len(layers) - 1
    alone = last > 0 and len(layers[last].norms) == 1 < len(layers[last - 1].norms)
    return [i for i, layer in enumerate(layers) if layer.norms and not (alone and i == last)]
