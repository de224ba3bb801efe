"""How an image betrays what it needs: maps fitted on degraded copies of source images.

The clean original of every copy is at hand, so what a filter gains and how far the features are off
is known for each; ridge regressions learn to tell it from the image alone. No labels, and none of
the corruptions that results are reported on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.copies import Copies
from zotta_edge.calibration.observed import Observed, Observer
from zotta_edge.calibration.ridge import Doubles, principal, ridge
from zotta_edge.format import Floats, Prime
from zotta_edge.format.packing import coded_bytes
from zotta_edge.format.signatures import Signatures
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.signature import Maps, best_filters

RANK, LEAST_RANK = 32, 4  # of the predicted moves, as the file's size allows
CLEAN = 3.0  # weight of an image as it is among copies
GAIN_LIMITS = (-3.0, 2.0)  # of a filter's log gain
GAIN_PENALTY, MOVE_PENALTY = 100.0, 1000.0
DELTA_PENALTY = 0.3  # of the coordinates' mean square
_LEAST_SPREAD = 1e-3  # of a measure
MOVED = 4  # one chunk of copies in so many is answered with its moves


@dataclass(frozen=True)
class Size:
    """What the maps of a network measure, before they are fitted."""

    measures: int
    filters: int
    stem: int
    features: int
    embedding: int

    def bytes(self, rank: int) -> int:
        """In the file, before base64."""
        q = self.measures * (self.measures + 3) // 2 + 1
        maps = [(q, self.filters), (self.stem + self.filters + q, rank)]
        maps += [(rank, self.features), (rank, self.embedding)]
        return 8 * self.measures + sum(coded_bytes(*each) for each in maps)

    def rank(self, affordable: float) -> int:
        """The largest that so many bytes pay for, within reason."""
        ranks = [rank for rank in range(LEAST_RANK, RANK + 1) if self.bytes(rank) <= affordable]
        return ranks[-1] if ranks else LEAST_RANK


def size_of(observer: Observer) -> Size:
    channels = [layer.channels for layer in observer.engine.info.layers]
    first = min(observer.engine.chosen)
    return Size(
        observer.measures.count,
        len(observer.filters.names) - 1,
        sum(channels[:first]),
        sum(channels[first:]),
        len(observer.calibration.embedding_mean),
    )


def moved_chunks(observer: Observer) -> list[slice]:
    """The copies that are answered once more, with their moves."""
    return list(observer.chunks())[::MOVED]


def fit(
    observer: Observer,
    seen: Observed,
    prime: Prime,
    rank: int,
    progress: Callable[[int], None] = lambda copies: None,
) -> Signatures:
    """All maps; that of the embedding also from some copies answered with their moves."""
    table = _Table(observer.copies, seen)
    maps = Maps(_blank(observer, table, rank), observer.calibration, min(observer.engine.chosen))
    q = maps.products(seen.measures)
    gains = ridge(q, table.gains, GAIN_PENALTY, table.weights).astype(np.float32)
    chosen = best_filters(q @ gains, PrimedSettings().filter_margin)
    stem, offsets = table.through(chosen, size_of(observer).stem)
    u = maps.signature(stem, q, chosen)
    moves = ridge(u, offsets, MOVE_PENALTY, table.weights)
    main = principal(u @ moves, table.weights, rank)
    z = (u @ moves @ main).astype(np.float32)
    fitted = replace(
        maps.stored,
        gains=gains,
        spread=_spread(observer.copies, q @ gains),
        inward=(moves @ main).astype(np.float32),
        outward=main.T.astype(np.float32),
        energy=float(np.square(z[: table.clean]).sum(axis=1).mean()),
    )
    chunks = moved_chunks(observer)
    moved = observer.moved(fitted, prime, u, chosen, chunks, progress)
    return replace(fitted, deltas=table.deltas(z, chosen, moved, np.r_[tuple(chunks)]))


@dataclass(frozen=True)
class _Table:
    """What was observed, as regressions take it."""

    copies: Copies
    seen: Observed

    @property
    def clean(self) -> int:
        return len(self.copies.images)

    @property
    def weights(self) -> Doubles:
        return np.where(np.arange(len(self.seen)) < self.clean, CLEAN, 1.0)

    @property
    def gains(self) -> Floats:
        """Log of how much nearer a filter brings each copy to its original, [N, F]."""
        distances = self.seen.distances
        gains: Floats = np.clip(distances[1:] - distances[0], *GAIN_LIMITS).T
        return gains

    def original(self, values: NDArray[np.floating]) -> Floats:
        """[1 + F, N, ...] of each copy's original, as it is: [N, ...]."""
        original: Floats = values[0, self.copies.of].astype(np.float32)
        return original

    def through(self, chosen: NDArray[np.intp], width: int) -> tuple[Floats, Floats]:
        """Of every copy through its filter: stem features, and r, how far the others are off."""
        features = self.seen.features[chosen, np.arange(len(chosen))].astype(np.float32)
        return features[:, :width], (features - self.original(self.seen.features))[:, width:]

    def deltas(
        self, z: Floats, chosen: NDArray[np.intp], moved: Floats, rows: NDArray[np.intp]
    ) -> Floats:
        """From z to what the embedding is off after a move: before it, and what moves change.

        The change hardly depends on what is seen, so the few rows that were moved tell it.
        """
        before = self.seen.embeddings[chosen, np.arange(len(chosen))]
        off = _deltas(z, before - self.original(self.seen.embeddings), self.weights)
        return off + _deltas(z[rows], moved - before[rows], self.weights[rows])


def _blank(observer: Observer, table: _Table, rank: int) -> Signatures:
    """The units of the measures, and maps that say nothing yet."""
    size, measures = size_of(observer), table.seen.measures[: table.clean]
    return Signatures(
        filters=observer.filters.names[1:],
        measure_mean=measures.mean(axis=0),
        measure_std=np.maximum(measures.std(axis=0), _LEAST_SPREAD),
        gains=np.zeros((0, size.filters), np.float32),
        inward=np.zeros((0, rank), np.float32),
        outward=np.zeros((rank, size.features), np.float32),
        deltas=np.zeros((rank, size.embedding), np.float32),
        spread=1.0,
        energy=1.0,
        images=table.clean,
        copies=observer.copies.times,
        seconds=0.0,
    )


def _spread(copies: Copies, gains: Floats) -> float:
    """How much the gains of images of one kind differ, at whatever strengths."""
    kinds = np.array([copies.kind(row) for row in range(len(copies))])
    groups = [gains[kinds == kind] for kind in sorted(set(kinds) - {""})]
    variances = [group.var(axis=0).sum() for group in groups if len(group) > 1]
    return max(float(np.mean(variances)), 1e-6) if variances else 1.0


def _deltas(z: Floats, left: Floats, weights: Doubles) -> Floats:
    """From the coordinates of a move to what is left of the embedding."""
    weighted = z * weights[:, None]
    normal = weighted.T @ z
    penalty = DELTA_PENALTY * np.trace(normal) / len(normal)
    solved = np.linalg.solve(normal + penalty * np.eye(len(normal)), weighted.T @ left)
    return solved.astype(np.float32)
