"""What a model makes of degraded copies, as they are and through every filter."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.calibration.copies import Copies
from zotta_edge.format import Calibration, Floats, Prime
from zotta_edge.format.signatures import Signatures
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.io.preprocessing import prepare
from zotta_edge.runtime.methods.primed.filters import Filters
from zotta_edge.runtime.methods.primed.measures import Measures
from zotta_edge.runtime.methods.primed.own_moves import OwnMoves
from zotta_edge.runtime.methods.primed.settings import PrimedSettings
from zotta_edge.runtime.methods.primed.signature import Maps
from zotta_edge.runtime.watch.statistics import floored, log_softmax, pooled
from zotta_edge.runtime.zeroth.parameters import Parameters

CHUNK = 32  # copies of a pass
_NEAR, _SURE = 0.02, 0.05  # floors of a distance of features, and of answers: less is as good as 0


@dataclass(frozen=True)
class Observed:
    """One row a copy, the source's images first; the first index is none and the filters."""

    measures: Floats  # [N, M]
    features: NDArray[np.float16]  # [1 + F, N, all layers' channels], less the source's mean
    embeddings: Floats  # [1 + F, N, E]
    distances: Floats  # [1 + F, N], log of how far from the clean image
    answers: Floats  # [n, class], log probabilities of the clean images

    def __len__(self) -> int:
        return len(self.measures)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return dict(vars(self))

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> "Observed":
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})


class Observer:
    """Runs copies through none and every filter, a chunk at a time."""

    def __init__(self, engine: Engine, calibration: Calibration, copies: Copies) -> None:
        self.engine, self.calibration, self.copies = engine, calibration, copies
        self._p = engine.info.preprocessing
        self.filters = Filters(self._p, calibration.pixels)
        self.measures = Measures(self._p)
        self._mean = np.concatenate(calibration.mean)
        self._unit = floored(np.concatenate(calibration.std))
        self._moved = sum(len(mean) for mean in calibration.mean[: min(engine.chosen)])

    def chunks(self, first: int = 0) -> Iterator[slice]:
        for start in range(first, len(self.copies), CHUNK):
            yield slice(start, min(start + CHUNK, len(self.copies)))

    def prepared(self, rows: slice) -> Floats:
        return prepare(self.copies[rows], self._p)

    def observe(
        self,
        so_far: Observed | None,
        finished: Callable[[Observed], None] = lambda so_far: None,
        progress: Callable[[int], None] = lambda copies: None,
    ) -> Observed:
        """All copies, from where an earlier run was stopped."""
        for rows in self.chunks(0 if so_far is None else len(so_far)):
            so_far = self._chunk(rows, so_far)
            finished(so_far)
            progress(rows.stop - rows.start)
        if so_far is None:
            raise ValueError("no copies to observe")
        return so_far

    def moved(
        self,
        maps: Signatures,
        prime: Prime,
        u: Floats,
        chosen: NDArray[np.intp],
        chunks: list[slice],
        progress: Callable[[int], None] = lambda copies: None,
    ) -> Floats:
        """Embeddings of these copies, each through its filter and with its own move."""
        parameters = Parameters(self.engine.info, self.engine.chosen)
        settings = PrimedSettings()
        read = Maps(maps, self.calibration, min(self.engine.chosen))
        own = OwnMoves(read, prime, parameters, settings)
        found = []
        for rows in chunks:
            names = [self.filters.names[index] for index in chosen[rows]]
            stem = self.engine.stem(self.filters.each(names, self.prepared(rows)))
            moves = own.moves(read.needed(u[rows], settings.own_least))
            theta = own.thetas(parameters.source, moves)
            found.append(self.engine.cone(stem, parameters.affines(theta)).embedding)
            progress(rows.stop - rows.start)
        return np.concatenate(found)

    def _chunk(self, rows: slice, so_far: Observed | None) -> Observed:
        images = self.prepared(rows)
        seen = [self._pass(self.filters(name, images)) for name in self.filters.names]
        features = np.stack([each[0] for each in seen])
        embeddings: Floats = np.stack([each[1] for each in seen])
        answers: Floats = np.stack([each[2] for each in seen])
        new = max(0, min(rows.stop, len(self.copies.images)) - rows.start)  # clean ones
        clean = answers[0, :new] if so_far is None else _joined(so_far.answers, answers[0, :new])
        everything = features if so_far is None else _joined(so_far.features, features, 1)
        of = self.copies.of[rows]
        distances = self._distances(features, everything[0, of], answers, clean[of])
        found = Observed(self.measures(images), features, embeddings, distances, answers[0, :new])
        return found if so_far is None else _appended(so_far, found)

    def _pass(self, images: Floats) -> tuple[NDArray[np.float16], Floats, Floats]:
        outputs = self.engine.cone(self.engine.stem(images), {})
        features = (pooled(outputs) - self._mean).astype(np.float16)
        return features, outputs.embedding, log_softmax(outputs.logits)

    def _distances(
        self, features: NDArray[Any], clean: NDArray[Any], answers: Floats, right: Floats
    ) -> Floats:
        """Log of how far features and answers are from the clean image's, half each."""
        off = (features - clean.astype(np.float32))[..., self._moved :] / self._unit[self._moved :]
        wrong = (np.exp(right) * (right - answers)).sum(axis=-1)
        near, sure = np.square(off).mean(axis=-1) + _NEAR, np.maximum(wrong, 0) + _SURE
        return np.asarray(0.5 * (np.log(near) + np.log(sure)), np.float32)


def _joined(one: NDArray[Any], other: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    return np.concatenate([one, other], axis=axis)


def _appended(one: Observed, other: Observed) -> Observed:
    return Observed(
        _joined(one.measures, other.measures),
        _joined(one.features, other.features, 1),
        _joined(one.embeddings, other.embeddings, 1),
        _joined(one.distances, other.distances, 1),
        _joined(one.answers, other.answers),
    )
