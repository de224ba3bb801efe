"""The library's entry: a classifier that adapts to its stream while it answers."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.errors import NotFiniteError, ZottaError
from zotta_edge.format import LOGITS, Floats, ModelInfo
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.events import Discarded, Events, Unlearned
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.methods.contract import Answer
from zotta_edge.runtime.methods.registry import (
    check_fits,
    chosen_layers,
    default_method,
    find,
)
from zotta_edge.runtime.methods.remembering import opened
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.state import fields, file
from zotta_edge.runtime.watch.audit import Audit
from zotta_edge.runtime.watch.misprepared import Misprepared
from zotta_edge.runtime.watch.reliability import AccuracyEstimate
from zotta_edge.runtime.watch.statistics import log_softmax

Images = Sequence[NDArray[Any]] | NDArray[Any]


@dataclass(frozen=True)
class Result:
    """The answers to one batch.

    Attributes
    ----------
    labels
        The most probable class of each image, by index.
    probabilities, logits
        [batch, class].
    adapted
        Whether this batch changed the model.
    drift
        How far the stream is from the source, in the source's standard deviations; None where the
        method does not measure it.
    outputs
        The answers by name: `logits`, or whatever a network without class scores gives. Such a
        network has one class.
    """

    labels: NDArray[np.intp]
    probabilities: Floats
    logits: Floats
    adapted: bool
    drift: float | None
    outputs: Mapping[str, Floats] = field(default_factory=dict)


class AdaptiveModel:
    """A model file that adapts while it answers.

    Calls may come from several threads: those that adapt take turns, and a call that only reads
    sees the model as it was between two updates.

    Parameters
    ----------
    engine
        An opened model file; `AdaptiveModel.load` opens one.
    settings
        Constants of adaptation; None: the defaults.
    method
        A way to adapt, by name; None: `primed` where the file is primed, else `zotta`.

    Attributes
    ----------
    events
        Where adaptation reports what it decided; `events.subscribe(listener)`.
    fingerprint
        SHA-256 of the model file, which a state belongs to.

    Examples
    --------
    >>> import numpy as np
    >>> from zotta_edge import AdaptiveModel
    >>> from zotta_edge.models import embedded
    >>> model = AdaptiveModel.load(embedded.MODEL)
    >>> digits = embedded.digits(64) // 4 + 128  # in a haze
    >>> model.events.subscribe(lambda event: print(event.kind))
    >>> result = model.predict(digits)
    changed
    filter
    >>> result.labels.shape, result.adapted
    ((64,), True)
    >>> model.status()["filter"]
    'contrast'
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings | None = None,
        method: str | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.method = method or default_method(engine.info, self.settings)
        self._engine, self.fingerprint = engine, engine.file.fingerprint
        self.events = Events()
        check_fits(self.method, engine.info)
        self._method = opened(self.method, engine, self.settings, self.events)
        self._turn = threading.RLock()
        self._frozen = False
        self._misprepared = Misprepared(self.info.preprocessing, self.settings, self.events)
        self._counts = dict.fromkeys(("images", "batches", "resets"), 0)
        self._audit = Audit(
            engine.info.reliability,
            self.settings,
            self.events,
            lambda batch: self._source(batch).logits,
        )
        self._accuracy = AccuracyEstimate(engine.info)
        self._new = file.outline(self._state())  # what a state must be like

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: Settings | None = None,
        method: str | None = None,
        provider: str | None = None,
        threads: int | None = None,
    ) -> "AdaptiveModel":
        """Open a calibrated model file.

        Parameters
        ----------
        path
            What `zotta-edge export` and `zotta-edge calibrate` made.
        settings, method
            As for the class.
        provider
            An execution provider of ONNX Runtime; None: the CPU.
        threads
            None: the physical cores.
        """
        settings = settings or Settings()
        chosen = settings.layers
        if method is not None:
            chosen = chosen_layers(find(method), settings, lambda: read_info(path))
        engine = Engine.open(path, chosen=chosen, threads=threads, provider=provider)
        return cls(engine, settings, method)

    def unadapted(self) -> "AdaptiveModel":
        """The same file without adaptation, to compare with; weights and sessions are shared."""
        return AdaptiveModel(self._engine, self.settings, "none")

    @property
    def info(self) -> ModelInfo:
        """What the file says of itself."""
        return self._engine.info

    @property
    def passes(self) -> float:
        """Forward passes executed so far, counted an image; part of a pass counts in proportion."""
        return self._engine.passes

    def predict(self, images: Images, adapt: bool = True) -> Result:
        """Adapt to a batch where that is due, then answer it.

        Parameters
        ----------
        images
            uint8 images of any sizes, or a preprocessed float batch [batch, C, H, W].
        adapt
            False: the model answers as it is, without waiting for its turn.
        """
        return self.predict_prepared(as_batch(images, self.info.preprocessing), adapt)

    def predict_prepared(self, batch: Floats, adapt: bool = True) -> Result:
        """`predict` for a batch that `as_batch` has prepared and checked already."""
        if adapt and not self._frozen:
            with self._turn:
                if not self._frozen:  # frozen while this call waited
                    return _result(self._learn(batch))
        return _result(self._read(batch))

    def _learn(self, batch: Floats) -> Answer:
        if self.settings.episodic:
            self._method.reset()
        try:
            answer = _finite(self._audited(batch))
        except NotFiniteError as error:
            self.events.report(Discarded(str(error)))
            return self._read(batch)
        self._accuracy.observe(answer.logits, answer.features)
        self._counts["images"] += len(batch)
        self._counts["batches"] += 1
        return answer

    def _audited(self, batch: Floats) -> Answer:
        """What the method answers; the source's answers where the method is found to do harm."""
        if self._audit.holding or self._misprepared.found(batch):
            self._audit.wait(len(batch))
            return self._source(batch)
        answer = self._method.predict(batch)
        if answer.moved and self._audit.finds_harm(batch, answer.logits):
            self._method.reset()
            return replace(self._source(batch), adapted=True, drift=answer.drift)
        return answer

    def _source(self, batch: Floats) -> Answer:
        """What the source parameters answer."""
        outputs = self._engine.cone(self._engine.stem(batch), {})
        return Answer(outputs.logits, False, None, False, outputs.features, outputs.others)

    def _read(self, batch: Floats) -> Answer:
        """Answer as the model is; one that has learned its way out of all numbers starts anew."""
        if self._audit.holding or self._misprepared.complaint(batch):
            return self._source(batch)
        try:
            return _finite(self._method.read(batch))
        except NotFiniteError as error:
            with self._turn:
                source = self._source(batch)  # fails: the images' fault
                self.events.report(Unlearned(str(error)))
                self.reset()
            return source

    def reset(self) -> None:
        """Go back to the source, as if newly loaded; only the counts stay."""
        with self._turn:
            self._method.reset()
            self._audit.reset()
            self._accuracy.reset()
            self._counts["resets"] += 1

    def freeze(self) -> None:
        """Keep what was learned and learn no more."""
        with self._turn:  # an update under way is finished first
            self._frozen = True

    def unfreeze(self) -> None:
        """Learn again."""
        self._frozen = False

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a state file would hold, by name."""
        with self._turn:
            return self._state()

    def save_state(self, path: str | Path) -> None:
        """Write what was learned: a model that loads it continues bit for bit as this one would."""
        file.save(path, self.arrays(), self.fingerprint, self.method)

    def load_state(self, path: str | Path) -> None:
        """Continue from a saved state; a state that does not fit is refused and changes nothing."""
        with self._turn:
            arrays = file.load(path, self._new, self.fingerprint, self.method)
            before = self._method.state()
            try:
                self._method.restore(fields.section(arrays, "method"))
                fields.restore_all(self._parts(), arrays)
            except (ValueError, IndexError, KeyError, ArithmeticError) as error:
                self._method.restore(before)
                raise ZottaError(f"{path} is damaged ({error}): delete it") from error
            self._counts = {name: int(arrays[name][0]) for name in self._counts}

    def status(self) -> dict[str, Any]:
        """Numbers for reports and dashboards."""
        with self._turn:
            own = {"method": self.method, "frozen": self._frozen, "passes": self.passes}
            return own | self._counts | self._watched() | self._method.status()

    def _state(self) -> dict[str, NDArray[Any]]:
        counts = {name: np.array([count]) for name, count in self._counts.items()}
        watched = fields.states_of(self._parts())
        return counts | watched | fields.joined({"method": self._method.state()})

    def _parts(self) -> dict[str, fields.Stateful]:
        """What watches over any method; states of earlier versions do not hold it."""
        return {
            fields.row("watch", "audit"): self._audit,
            fields.row("watch", "doubt"): self._audit.doubt,
            fields.row("watch", "accuracy"): self._accuracy,
        }

    def _watched(self) -> dict[str, Any]:
        estimate = self._accuracy.now()
        return {
            "accuracy": estimate.to_dict() if estimate else None,
            "held": self._audit.holding,
            "holds": self._audit.holds,
        }


def _finite(answer: Answer) -> Answer:
    if not all(np.isfinite(part).all() for part in (answer.logits, *answer.others.values())):
        raise NotFiniteError("the answer is not finite")
    return answer


def _result(answer: Answer) -> Result:
    return Result(
        answer.logits.argmax(axis=1),
        np.exp(log_softmax(answer.logits)),
        answer.logits,
        answer.adapted,
        answer.drift,
        answer.others or {LOGITS: answer.logits},
    )
