"""SLOT: one vector added to the last hidden state, fitted on the prompt's own tokens.

The vector is the same for all tokens, so it moves all logits by one row, delta W; and the gradient
of the prompt's loss is W (mean of p - onehot). Both are products of W with one vector: fitting
costs no pass through the network, and no back-propagation.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from zotta_edge.format import Floats
from zotta_edge.options import Options, option
from zotta_edge.runtime.events import Events
from zotta_edge.runtime.generate.engine import DecoderEngine, Pass, Tokens
from zotta_edge.runtime.generate.head import head_weights
from zotta_edge.runtime.generate.methods.contract import Forgetful, Move
from zotta_edge.runtime.generate.prompts import Batch, Ints
from zotta_edge.runtime.watch.statistics import log_softmax

_BETAS, _TINY = (0.9, 0.999), 1e-8  # Adam's


@dataclass(frozen=True)
class SlotSettings(Options):
    """SLOT's own: a few steps of Adam for every prompt, nothing kept."""

    slot_steps: int = option(5, "steps of Adam on the prompt's tokens", low=0)
    slot_rate: float = option(0.01, "their size", low=0)


class Slot(Forgetful):
    """Fits the shift of every prompt anew."""

    def __init__(self, engine: DecoderEngine, settings: Any, events: Events) -> None:
        self._engine, self._settings = engine, settings
        self._weights: Floats | None = None  # [hidden, vocabulary]; as large as an fp32 head
        self._gained = 0.0

    def prepare(self, batch: Batch, limit: int) -> Move:
        if self._weights is None:
            self._weights = head_weights(self._engine)
        tokens = Tokens(batch.ids, batch.mask, batch.positions, batch.image_rows)
        longest = self._engine.positions_in(self._settings.kilobytes) // len(batch)
        first = max(0, batch.ids.shape[1] - max(1, longest))
        seen = self._engine.forward(tokens, first=first)
        rows = zip(seen.logits, batch.ids[:, first:], batch.words[:, first:], strict=True)
        shifts = np.stack(
            [self._fit(logits[:-1][said[1:]], ids[1:][said[1:]]) for logits, ids, said in rows]
        )
        last = seen.logits[:, -1] + shifts @ self._weights
        started = Pass(last[:, None], seen.hidden, seen.cache)
        return Move(shift=shifts[:, None], started=started)

    def status(self) -> dict[str, Any]:
        return {"prompt_loss_gained": self._gained}

    def _fit(self, logits: Floats, targets: Ints) -> Floats:
        """The shift that a few steps of Adam lead to from zero, [hidden]."""
        weights = self._weights
        assert weights is not None
        shift = np.zeros(len(weights), np.float32)
        if not len(targets):
            return shift
        first, second = np.zeros_like(shift), np.zeros_like(shift)
        losses = []
        for step in range(1, self._settings.slot_steps + 1):
            loss, gradient = prompt_gradient(logits, targets, weights, shift)
            losses.append(loss)
            first = _BETAS[0] * first + (1 - _BETAS[0]) * gradient
            second = _BETAS[1] * second + (1 - _BETAS[1]) * gradient**2
            slope = first / (1 - _BETAS[0] ** step)
            size = np.sqrt(second / (1 - _BETAS[1] ** step)) + _TINY
            shift = (shift - self._settings.slot_rate * slope / size).astype(np.float32)
        self._gained = losses[0] - losses[-1] if losses else 0.0
        return shift


def prompt_gradient(
    logits: Floats, targets: Ints, weights: Floats, shift: Floats
) -> tuple[float, Floats]:
    """Mean loss of the prompt's tokens, and its gradient with respect to the shift.

    Parameters
    ----------
    logits
        Without a shift, [tokens, vocabulary].
    targets
        The token that follows each, [tokens].
    weights, shift
        W [hidden, vocabulary] and delta [hidden].
    """
    scores = log_softmax(logits + shift @ weights)
    loss = -float(scores[np.arange(len(targets)), targets].mean())
    error = np.exp(scores).mean(axis=0)
    np.subtract.at(error, targets, np.float32(1 / len(targets)))
    gradient: Floats = weights @ error
    return loss, gradient
