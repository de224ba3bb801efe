"""Every constant of adaptation: its symbol, its equation and its default."""

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from zotta_edge.errors import ZottaError
from zotta_edge.format import Kind


def _setting(default: Any, about: str, low: float = -math.inf, high: float = math.inf) -> Any:
    """A field that explains itself, and the closed range it must lie in."""
    return field(default=default, metadata={"about": about, "low": low, "high": high})


@dataclass(frozen=True)
class Settings:
    """Defaults are the paper's where it has a value; the gate and the guard are ours.

    >>> Settings(pairs=2, always=True)
    >>> Settings.from_toml("zotta.toml").override(["learning_rate=0.02"])
    """

    # Eq. 2, the estimate
    estimator: Literal["shared", "per-sample"] = _setting(
        "shared", "one direction u for the batch as in the paper, or one for each sample of it"
    )
    pairs: int = _setting(5, "k, pairs of perturbed passes an update", low=1)
    perturbation: float = _setting(0.01, "c, size of a perturbation", low=1e-6)
    perturbation_decay: float = _setting(
        0.0, "gamma, c_t = c / t^gamma at update t (SPSA: 0.101, paper: 0)", low=0
    )
    directions: Literal["gaussian", "segmented-uniform"] = _setting(
        "gaussian", "u, N(0, I) as in the paper or SPSA's +-U[0.5, 1]"
    )

    # Eq. 5, the objective
    entropy_weight: float | None = _setting(
        None, "lambda1; unset: 1 for transformers, 0.1 for convolutional networks", low=0
    )
    alignment_weight: float | None = _setting(
        None, "lambda2; unset: 0.4 for transformers, 1 for convolutional networks", low=0
    )
    reduction: Literal["mean", "sum"] = _setting(
        "mean", "entropy of a batch: a mean, which suits all batch sizes, or the sum of Eq. 5"
    )
    queue: int = _setting(
        4, "samples behind the statistics: a smaller batch borrows the last ones' features", low=1
    )

    # Eq. 1 and Algorithm 1, the update
    learning_rate: float = _setting(0.01, "eta, size of a step", low=0)
    learning_rate_decay: float = _setting(
        0.0, "alpha, eta_t = eta / t^alpha at update t (SPSA: 0.602, paper: 0)", low=0
    )
    momentum: float = _setting(0.0, "beta of SGD (SPSA-GC: 0.9, paper: 0)", low=0, high=0.999)
    steps: int = _setting(1, "updates a batch, `step` in Algorithm 1", low=1)
    prediction: Literal["after", "mean", "best"] = _setting(
        "after",
        "answer with a pass after the update (Algorithm 1), or without a further pass with the "
        "mean of the perturbed passes or the one of lowest loss",
    )
    layers: tuple[int, ...] | None = _setting(
        None, "layers to adapt by index; unset: those calibration chose", low=0
    )
    episodic: bool = _setting(False, "forget everything before each batch")
    seed: int = _setting(0, "of the directions", low=0)

    # Primed alignment (methods/primed.py)
    damping: float = _setting(
        3.0, "lambda of the Gauss-Newton step, relative to J^T J's mean diagonal", low=1e-3
    )
    window: int = _setting(256, "samples behind a primed step: more are surer", low=1)
    budget: float = _setting(
        1.08,
        "passes an image that may be spent on average, to try filters and to answer again after a "
        "step; from 2 on, drifted images are also answered in a mirror, where the model does not "
        "mind",
        low=1,
    )
    filters: bool = _setting(
        True, "show images of a drifted stream through the filter that brings them closest"
    )

    # When to adapt (drift.py)
    always: bool = _setting(False, "adapt on every batch, as the paper does")
    drift_threshold: float = _setting(
        10.0, "adapt when the stream is this many times further off than noise explains", low=1
    )
    drift_window: int = _setting(64, "samples behind the drift score", low=8)
    patience: int = _setting(512, "samples after which adaptation must have paid", low=1)
    worthwhile: float = _setting(
        0.01, "share by which the objective must fall from one such stretch to the next", low=0
    )

    # Never worse than doing nothing (guard.py)
    guard: bool = _setting(True, "bound, roll back and reset updates that do harm")
    max_step: float = _setting(
        0.05,
        "longest update, as a share of |theta_S| times sqrt(k batch / d); per-sample 4 times that",
        low=0,
    )
    max_distance: float = _setting(
        2.0,
        "furthest from the source, as a share of |theta_S| times sqrt(k / d); per-sample 4 times "
        "that",
        low=0,
    )
    tolerance: float = _setting(
        0.01, "share by which an update may raise its own samples' objective: rounding does", low=0
    )
    backoff: float = _setting(0.5, "longest update after a rollback, relative", low=0, high=1)
    collapse_share: float = _setting(
        0.8, "of the answers in one class, with entropy fallen: collapse", low=0, high=1
    )
    collapse_entropy: float = _setting(
        0.5, "of the entropy without adaptation, below which it counts as fallen", low=0
    )

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for item in fields(self):
            value = _typed(item.name, getattr(self, item.name), types[item.name])
            _check_range(item.name, value, item.metadata["low"], item.metadata["high"])
            object.__setattr__(self, item.name, value)

    @classmethod
    def from_toml(cls, path: str | Path) -> "Settings":
        """Read a flat TOML file: `pairs = 2`, `always = true`, ..."""
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ZottaError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ZottaError(f"{path} is not valid TOML: {error}") from error
        try:
            return cls().replace(table)
        except ZottaError as error:
            raise ZottaError(f"{path}: {error}") from error

    def replace(self, values: Mapping[str, Any]) -> "Settings":
        """The same settings with some of them changed; an unknown name is an error."""
        known = [item.name for item in fields(self)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ZottaError(f"no setting is called {name}: {hint}")
        return replace(self, **values)

    def override(self, assignments: Iterable[str]) -> "Settings":
        """`name=value` texts from a command line; the value is TOML, or a bare word."""
        return self.replace(dict(_assignment(text) for text in assignments))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def weights(self, kind: Kind) -> tuple[float, float]:
        """lambda1 and lambda2 of Eq. 5: given, or the paper's for this kind of network."""
        entropy, alignment = (1.0, 0.4) if kind == "tokens" else (0.1, 1.0)
        return (
            entropy if self.entropy_weight is None else self.entropy_weight,
            alignment if self.alignment_weight is None else self.alignment_weight,
        )

    def gains(self, update: int) -> tuple[float, float]:
        """eta_t and c_t of the given update, counted from 1."""
        return (
            self.learning_rate / update**self.learning_rate_decay,
            self.perturbation / update**self.perturbation_decay,
        )


def describe() -> dict[str, tuple[Any, str]]:
    """Every setting's default and explanation, for a command line's help."""
    return {item.name: (item.default, item.metadata["about"]) for item in fields(Settings)}


def _assignment(text: str) -> tuple[str, Any]:
    name, sign, value = (part.strip() for part in text.partition("="))
    if not (name and sign and value):
        raise ZottaError(f"cannot read the setting {text!r}: expected name=value")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _typed(name: str, value: Any, expected: Any) -> Any:
    """`value` as the type its field declares; an integer will do for a float."""
    options = get_args(expected)
    if value is None and type(None) in options:
        return None
    if all(isinstance(option, str) for option in options) and options:
        if value in options:
            return value
        raise ZottaError(f"{name} is {value!r}: expected one of {', '.join(options)}")
    kind = next((option for option in options if option is not type(None)), expected)
    if expected == tuple[int, ...] | None:
        if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
            return tuple(sorted(set(value)))
        raise ZottaError(f"{name} is {value!r}: expected a list of layer indices such as [3, 4, 5]")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ZottaError(f"{name} is {value!r}: expected {_KINDS[kind]}")
    return value


_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if isinstance(number, bool | str) or number is None:
            continue
        if not (low <= number <= high and math.isfinite(number)):
            limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise ZottaError(f"{name} is {number}: expected a number {limits}")
