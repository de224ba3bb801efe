"""Token by token: a batch of prompts in, tokens out as they come."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.runtime.generate.engine import Cache, DecoderEngine, Pass, Scales, Tokens
from zotta_edge.runtime.generate.prompts import Batch, Ints
from zotta_edge.runtime.generate.sampling import SamplingSettings, choose
from zotta_edge.runtime.watch.statistics import log_softmax


@dataclass(frozen=True, eq=False)
class Step:
    """One token for every prompt of the batch."""

    tokens: Ints  # [batch]
    entropy: Floats  # [batch], in nats, of what the token was chosen from
    live: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"  # [batch], not yet ended before it


@dataclass(frozen=True)
class Completion:
    """What followed one prompt; a stop token at its end is left out."""

    tokens: tuple[int, ...]
    entropies: tuple[float, ...]  # one for each token, and one for the stop token if there was one
    stopped: bool  # by a stop token; False: by the limit

    @property
    def entropy(self) -> float:
        """Mean token entropy, what the paper minimizes."""
        return float(np.mean(self.entropies)) if self.entropies else 0.0


def steps(
    engine: DecoderEngine,
    batch: Batch,
    limit: int,
    sampling: SamplingSettings | None = None,
    scales: Scales | None = None,
    shift: Floats | None = None,
    rng: Generator | None = None,
    started: Pass | None = None,
) -> Iterator[Step]:
    """Generate at most `limit` tokens a prompt; ends early when every prompt met a stop token.

    Parameters
    ----------
    engine, batch, limit
        Model, prompts and the longest answer.
    sampling, rng
        How a token is chosen; None: greedily.
    scales, shift
        As for `DecoderEngine.forward`.
    started
        A pass over the batch that was made already, whose last logits and cache are gone on from.
    """
    sampling = sampling or SamplingSettings()
    rng = rng or np.random.default_rng(sampling.seed)
    stops = np.array(engine.info.prompting.stop, np.int64)
    mask, positions = batch.mask, batch.positions[..., -1:] + 1
    new = Tokens(batch.ids, batch.mask, batch.positions, batch.image_rows)
    if started is not None and engine.info.cache:
        check_cache(started.cache, engine, len(batch), batch.ids.shape[1])
    result = started or engine.forward(new, None, scales, shift, first=-1)
    history, live = batch, np.ones(len(batch), bool)
    for count in range(limit):
        logits = result.logits[:, -1]
        chosen = choose(logits, sampling, rng)
        yield Step(chosen, token_entropy(logits), live)
        live = live & ~np.isin(chosen, stops)
        if not live.any() or count + 1 == limit:
            return
        mask = np.concatenate([mask, np.ones((len(batch), 1), np.int64)], axis=1)
        following = Tokens(chosen[:, None], mask, positions)
        if not engine.info.cache:
            history = _grown(history, following)
            following = Tokens(history.ids, mask, history.positions, batch.image_rows)
        result = engine.forward(following, _cache(engine, result), scales, shift, first=-1)
        positions = positions + 1


def _cache(engine: DecoderEngine, result: Pass) -> Cache | None:
    return result.cache if engine.info.cache else None


def _grown(batch: Batch, new: Tokens) -> Batch:
    ids = np.concatenate([batch.ids, new.ids], axis=1)
    positions = np.concatenate([batch.positions, new.positions], axis=-1)
    return replace(batch, ids=ids, mask=new.mask, positions=positions)


def complete(
    found: Iterator[Step],
    batch: int,
    stop: tuple[int, ...],
    on_step: Callable[[Step], None] = lambda step: None,
) -> list[Completion]:
    """Run `steps` to its end."""
    all_steps = []
    for step in found:
        on_step(step)
        all_steps.append(step)
    return [_completion(all_steps, row, stop) for row in range(batch)]


def _completion(all_steps: list[Step], row: int, stop: tuple[int, ...]) -> Completion:
    live = [step for step in all_steps if step.live[row]]
    tokens = [int(step.tokens[row]) for step in live]
    stopped = bool(tokens) and tokens[-1] in stop
    entropies = tuple(float(step.entropy[row]) for step in live)
    return Completion(tuple(tokens[:-1] if stopped else tokens), entropies, stopped)


def token_entropy(logits: Floats) -> Floats:
    """Entropy in nats over the last axis.

    >>> token_entropy(np.zeros((1, 4), np.float32)).round(3)
    array([1.386], dtype=float32)
    """
    scores = log_softmax(logits.reshape(-1, logits.shape[-1]))
    entropy: Floats = -(np.exp(scores) * scores).sum(axis=-1)
    return entropy.reshape(logits.shape[:-1])


def check_cache(cache: Cache, engine: DecoderEngine, rows: int, past: int) -> None:
    """Refuse a cache that another model, batch or prompt left behind."""
    shape = engine.info.shape
    wanted = (rows, shape.kv_heads, past, shape.head_dim)
    names = {
        f"past_key_values.{n}.{part}" for n in range(shape.layers) for part in ("key", "value")
    }
    if set(cache) != names or any(tuple(each.shape()) != wanted for each in cache.values()):
        raise ZottaError(
            f"the cache belongs to another model, batch or prompt: expected {len(names)} tensors "
            f"of {list(wanted)}"
        )
