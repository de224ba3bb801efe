"""ZOTTA on a decoder: two-sided perturbations of the norms' scales, all in one batched pass.

The answer's mean token entropy is what the paper minimizes. A draft is generated first, and every
perturbed pass reads prompt and draft as a whole: no pass but the draft's own goes token by token,
and all rows of scales share what lies before the first norm. After the step one more such pass
tells whether greedy decoding would still write the draft; only if not is the answer written anew.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format import Floats
from zotta_edge.options import option
from zotta_edge.runtime.events import Events, RolledBack, StepShortened
from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
from zotta_edge.runtime.generate.generation import Completion, complete, steps, token_entropy
from zotta_edge.runtime.generate.methods.contract import Move
from zotta_edge.runtime.generate.methods.scales import ScaleVector
from zotta_edge.runtime.generate.prompts import Batch
from zotta_edge.runtime.generate.sampling import SamplingSettings
from zotta_edge.runtime.state import fields as states
from zotta_edge.runtime.watch.guard import GuardSettings
from zotta_edge.runtime.watch.statistics import log_softmax
from zotta_edge.runtime.watch.trust_region import Distance
from zotta_edge.runtime.zeroth.estimator import draw
from zotta_edge.runtime.zeroth.optimiser import Sgd


@dataclass(frozen=True)
class ZeroSettings(GuardSettings):
    """Of the zeroth-order methods; scales are counted in units of the source's."""

    pairs: int = option(5, "k of Eq. 2, pairs of perturbed passes a prompt", low=1)
    perturbation: float = option(0.02, "c of Eq. 2, as a share of a scale", low=1e-6)
    learning_rate: float = option(1e-3, "eta of Eq. 1", low=0)
    max_step: float = option(0.005, "longest update, as a share of the scales", low=0)
    max_distance: float = option(0.05, "furthest from the source, likewise", low=0)


@dataclass(frozen=True, eq=False)
class _Reading:
    """One prompt of a batch, and its draft, as a whole."""

    tokens: Tokens
    first: int  # logits are wanted from this token on
    words: NDArray[np.bool_]  # which of the prompt's tokens are the question's own


class _Zeroth(ABC):
    """Both objectives: estimate a gradient on one batch, step, remember theta."""

    def __init__(self, engine: DecoderEngine, settings: Any, events: Events) -> None:
        self._engine, self._settings, self._events = engine, settings, events
        self._scales = ScaleVector(engine.info)
        self._distance = Distance(self._scales.source, settings, events)
        self._optimiser = Sgd(len(self._scales))
        self.reset()

    def reset(self) -> None:
        self._theta, self._updates, self._kept = self._scales.source, 0, 0
        self._rng = np.random.default_rng(self._settings.seed)
        self._optimiser.reset()

    def current(self) -> Move:
        moved = self._theta is not self._scales.source
        return Move(self._scales.inputs(self._theta) if moved else None)

    def state(self) -> dict[str, NDArray[Any]]:
        own: dict[str, NDArray[Any]] = {"theta": self._theta}
        counts = {"updates": np.array([self._updates]), "kept": np.array([self._kept])}
        return own | counts | {"rng": states.rng_to_array(self._rng)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        theta = state["theta"].astype(np.float32)
        source = self._scales.source
        self._theta = source if np.array_equal(theta, source) else theta
        self._updates, self._kept = int(state["updates"][0]), int(state["kept"][0])
        self._rng = states.rng_from_array(state["rng"])

    def status(self) -> dict[str, Any]:
        return {
            "steps": self._updates,
            "kept": self._kept,
            "distance": self._distance(self._theta),
            "parameters": len(self._scales),
        }

    @abstractmethod
    def _losses(self, reading: _Reading, theta: Floats) -> NDArray[np.float64]:
        """The objective of one prompt under each row of theta."""

    def _estimate(self, readings: Sequence[_Reading]) -> tuple[Floats, float]:
        """Eq. 2 over the prompts of a batch: the gradient, and the mean loss around theta."""
        pairs, size = self._settings.pairs, self._settings.perturbation
        u = np.stack([draw("gaussian", len(self._scales), self._rng)[0] for _ in range(pairs)])
        rows = np.asarray(self._theta + np.float32(size) * np.concatenate([u, -u]), np.float32)
        losses = np.mean([self._losses(reading, rows) for reading in readings], axis=0)
        slopes = (losses[:pairs] - losses[pairs:]) / (2 * size * pairs)
        return slopes.astype(np.float32) @ u, float(losses.mean())

    def _stepped(self, gradient: Floats) -> Floats:
        self._updates += 1
        theta = self._optimiser.step(self._theta, gradient, self._settings.learning_rate)
        longest = self._settings.max_step
        theta = self._distance.within(self._theta, theta, longest, StepShortened)
        return self._distance.bounded(theta, self._settings.max_distance)

    def _logits(self, reading: _Reading, theta: Floats) -> list[Floats]:
        """Logits of each row of theta, as many rows at a time as memory allows."""
        tokens, first = reading.tokens, reading.first
        positions = self._engine.positions_in(self._settings.kilobytes)
        size = max(1, positions // (tokens.ids.shape[1] - first))
        rows = np.atleast_2d(theta)
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [
            self._engine.forward(tokens, None, self._scales.inputs(part), None, first).logits
            for part in parts
        ]


class TokenEntropy(_Zeroth):
    """Minimizes the mean entropy of the answer's tokens, as the paper does."""

    def prepare(self, batch: Batch, limit: int) -> Move:
        drafts = self._drafts(batch, limit)
        readings = [_read(batch, row, draft) for row, draft in enumerate(drafts)]
        gradient, before = self._estimate(readings)
        theta = self._stepped(gradient)
        passes = [self._logits(reading, theta)[0][0] for reading in readings]
        after = float(np.mean([token_entropy(logits).mean() for logits in passes]))
        if not np.isfinite(after) or (self._settings.guard and after > before):
            self._events.report(RolledBack(before, after))
            return self._answered(drafts)
        self._theta = theta
        pairs = zip(drafts, passes, strict=True)
        if not all(_still_greedy(draft, logits, self._stop) for draft, logits in pairs):
            return self.current()
        self._kept += len(drafts)
        entropies = [tuple(token_entropy(logits).tolist()) for logits in passes]
        again = zip(drafts, entropies, strict=True)
        return self._answered([Completion(each.tokens, h, each.stopped) for each, h in again])

    @property
    def _stop(self) -> tuple[int, ...]:
        return self._engine.info.prompting.stop

    def _drafts(self, batch: Batch, limit: int) -> list[Completion]:
        scales = self.current().scales
        found = steps(self._engine, batch, limit, SamplingSettings(), scales)
        return complete(found, len(batch), self._stop)

    def _answered(self, answers: Sequence[Completion]) -> Move:
        sampled = self._settings.temperature > 0
        return Move(self.current().scales, answers=() if sampled else tuple(answers))

    def _losses(self, reading: _Reading, theta: Floats) -> NDArray[np.float64]:
        parts = [token_entropy(logits).mean(axis=1) for logits in self._logits(reading, theta)]
        return np.asarray(np.concatenate(parts), np.float64)


class InputPerplexity(_Zeroth):
    """Minimizes the loss of the question's own tokens; no draft is needed."""

    def prepare(self, batch: Batch, limit: int) -> Move:
        longest = self._engine.positions_in(self._settings.kilobytes)
        readings = [_question(batch, row, longest) for row in range(len(batch))]
        readable = [each for each in readings if each.words[each.first + 1 :].any()]
        if readable:
            gradient, _ = self._estimate(readable)
            self._theta = self._stepped(gradient)
        return self.current()

    def _losses(self, reading: _Reading, theta: Floats) -> NDArray[np.float64]:
        next_one = reading.first + 1
        said, targets = reading.words[next_one:], reading.tokens.ids[0, next_one:]
        parts = [
            token_loss(logits[:, :-1][:, said], targets[said])
            for logits in self._logits(reading, theta)
        ]
        return np.asarray(np.concatenate(parts).mean(axis=1), np.float64)


def token_loss(logits: Floats, targets: NDArray[np.int64]) -> Floats:
    """Negative log-likelihood of each target under logits [rows, tokens, vocabulary].

    >>> token_loss(np.zeros((1, 1, 4), np.float32), np.array([2])).round(3)
    array([[1.386]], dtype=float32)
    """
    scores = log_softmax(logits.reshape(-1, logits.shape[-1])).reshape(logits.shape)
    loss: Floats = -scores[:, np.arange(len(targets)), targets]
    return loss


def _read(batch: Batch, row: int, draft: Completion) -> _Reading:
    """A prompt with its draft; logits from where the draft begins."""
    start = int((batch.mask[row] == 0).sum())
    prompt = batch.ids[row, start:]
    written = draft.tokens if draft.stopped else draft.tokens[:-1]  # read, to predict what follows
    ids = np.concatenate([prompt, np.array(written, np.int64)])[None]
    seen = batch.positions[..., row, start:]
    more = seen[..., -1:] + np.arange(1, len(written) + 1)
    positions = np.concatenate([seen, more], axis=-1)
    positions = positions[None] if positions.ndim == 1 else positions[:, None]
    rows = batch.image_rows_of(row)
    tokens = Tokens(ids, np.ones_like(ids), positions, rows)
    return _Reading(tokens, len(prompt) - 1, batch.words[row, start:])


def _question(batch: Batch, row: int, longest: int) -> _Reading:
    """A prompt alone; logits from where its question begins, or of so many tokens at its end."""
    whole = _read(batch, row, Completion((), (), False))
    start = int(whole.words.argmax()) - 1
    return replace(whole, first=max(0, start, len(whole.words) - longest))


def _still_greedy(draft: Completion, logits: Floats, stop: tuple[int, ...]) -> bool:
    """Whether each token of the draft, and its end, is still the most probable one."""
    best = logits.argmax(axis=-1)
    count = len(draft.tokens)
    ended = not draft.stopped or int(best[count]) in stop
    return bool((best[:count] == draft.tokens).all()) and ended
