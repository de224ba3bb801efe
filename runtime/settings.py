"""Every constant of adaptation: its symbol, its equation and its default."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from zotta_edge.format import Kind
from zotta_edge.options import Options, option


@dataclass(frozen=True)
class Settings(Options):
    """Defaults are the paper's where it has a value; the gate and the guard are ours.

    >>> settings = Settings(pairs=2, always=True).override(["learning_rate=0.02"])
    >>> settings.pairs, settings.learning_rate
    (2, 0.02)
    """

    noun: ClassVar[str] = "setting"

    # Eq. 2, the estimate
    estimator: Literal["shared", "per-sample"] = option(
        "shared", "one direction u for the batch as in the paper, or one for each sample of it"
    )
    pairs: int = option(5, "k, pairs of perturbed passes an update", low=1)
    perturbation: float = option(0.01, "c, size of a perturbation", low=1e-6)
    perturbation_decay: float = option(
        0.0, "gamma, c_t = c / t^gamma at update t (SPSA: 0.101, paper: 0)", low=0
    )
    directions: Literal["gaussian", "segmented-uniform"] = option(
        "gaussian", "u, N(0, I) as in the paper or SPSA's +-U[0.5, 1]"
    )

    # Eq. 5, the objective
    entropy_weight: float | None = option(
        None, "lambda1; unset: 1 for transformers, 0.1 for convolutional networks", low=0
    )
    alignment_weight: float | None = option(
        None, "lambda2; unset: 0.4 for transformers, 1 for convolutional networks", low=0
    )
    reduction: Literal["mean", "sum"] = option(
        "mean", "entropy of a batch: a mean, which suits all batch sizes, or the sum of Eq. 5"
    )
    queue: int = option(
        4, "samples behind the statistics: a smaller batch borrows the last ones' features", low=1
    )

    # Eq. 1 and Algorithm 1, the update
    learning_rate: float = option(0.01, "eta, size of a step", low=0)
    learning_rate_decay: float = option(
        0.0, "alpha, eta_t = eta / t^alpha at update t (SPSA: 0.602, paper: 0)", low=0
    )
    momentum: float = option(0.0, "beta of SGD (SPSA-GC: 0.9, paper: 0)", low=0, high=0.999)
    steps: int = option(1, "updates a batch, `step` in Algorithm 1", low=1)
    prediction: Literal["after", "mean", "best"] = option(
        "after",
        "answer with a pass after the update (Algorithm 1), or without a further pass with the "
        "mean of the perturbed passes or the one of lowest loss",
    )
    layers: tuple[int, ...] | None = option(
        None, "layers to adapt by index; unset: those calibration chose", low=0
    )
    episodic: bool = option(False, "forget everything before each batch")
    seed: int = option(0, "of the directions", low=0)

    # Primed alignment (methods/primed.py)
    damping: float = option(
        3.0, "lambda of the Gauss-Newton step, relative to J^T J's mean diagonal", low=1e-3
    )
    window: int = option(256, "samples behind a primed step: more are surer", low=1)
    budget: float = option(
        1.08,
        "passes an image that may be spent on average, to try filters and to answer again after a "
        "step; from 2 on, drifted images are also answered in a mirror, where the model does not "
        "mind",
        low=1,
    )
    filters: bool = option(
        True, "show images of a drifted stream through the filter that brings them closest"
    )

    # When to adapt (drift.py)
    always: bool = option(False, "adapt on every batch, as the paper does")
    drift_threshold: float = option(
        10.0, "adapt when the stream is this many times further off than noise explains", low=1
    )
    drift_window: int = option(64, "samples behind the drift score", low=8)
    patience: int = option(512, "samples after which adaptation must have paid", low=1)
    worthwhile: float = option(
        0.01, "share by which the objective must fall from one such stretch to the next", low=0
    )

    # Never worse than doing nothing (guard.py)
    guard: bool = option(True, "bound, roll back and reset updates that do harm")
    max_step: float = option(
        0.05,
        "longest update, as a share of |theta_S| times sqrt(k batch / d); per-sample 4 times that",
        low=0,
    )
    max_distance: float = option(
        2.0,
        "furthest from the source, as a share of |theta_S| times sqrt(k / d); per-sample 4 times "
        "that",
        low=0,
    )
    tolerance: float = option(
        0.01, "share by which an update may raise its own samples' objective: rounding does", low=0
    )
    backoff: float = option(0.5, "longest update after a rollback, relative", low=0, high=1)
    collapse_share: float = option(
        0.8, "of the answers in one class, with entropy fallen: collapse", low=0, high=1
    )
    collapse_entropy: float = option(
        0.5, "of the entropy without adaptation, below which it counts as fallen", low=0
    )

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
