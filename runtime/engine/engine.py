"""The model as the adaptation loop sees it: a stem that runs once a batch, a cone that repeats."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from zotta_edge.errors import NotFiniteError, ZottaError, one_line
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, Floats, ModelInfo
from zotta_edge.runtime.engine.cache import Rewrite, find_or_cut, find_or_rewrite, fingerprint_of
from zotta_edge.runtime.engine.model_info import description, image_axes, session_info
from zotta_edge.sessions import ORT_ERRORS, open_session

_LARGEST = 1e18  # whose square is still a float32


@dataclass(frozen=True)
class Outputs:
    """What one pass over a batch gives."""

    logits: Floats  # [batch, class]
    features: tuple[Floats, ...]  # v_l of all layers in order, [batch, channel] each
    embedding: Floats  # what the classifier head reads, [batch, D]
    others: Mapping[str, Floats] = field(default_factory=dict)  # of a network without class scores


@dataclass(frozen=True)
class Stem:
    """The part of a pass that no chosen affine changes, to be handed to `Engine.cone`."""

    batch: int
    handed: Mapping[str, Any]  # tensors the cone continues from, still in ONNX Runtime's hands
    outputs: Mapping[str, Floats]  # outputs that are final already


@dataclass(frozen=True)
class ModelFile:
    """Where an engine's graphs come from, and how they are opened."""

    path: Path
    threads: int | None
    provider: str | None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the file, read once."""
        return fingerprint_of(self.path)

    def session(self, model: str | Path | bytes) -> Any:
        return open_session(model, threads=self.threads, provider=self.provider)

    def rewritten(self, purpose: str, rewrite: Rewrite) -> "TensorSession":
        """Another graph made from the same file; it is kept beside the file, as a cut is."""
        return TensorSession(
            self.session(find_or_rewrite(self.path, purpose, rewrite, self.fingerprint))
        )


class Engine:
    """Runs a model file in two halves; safe to call from several threads.

    >>> from zotta_edge.models import embedded
    >>> engine = Engine.open(embedded.MODEL)
    >>> stem = engine.stem(np.zeros((4, 1, 32, 32), np.float32))
    >>> scale = engine.info.layers[engine.chosen[0]].norms[0].scale
    >>> engine.cone(stem, {scale: 1.1 * engine.info.affines[scale]}).logits.shape
    (4, 10)
    """

    def __init__(
        self,
        info: ModelInfo,
        chosen: tuple[int, ...],
        cone_share: float,
        stem: Any | None,
        cone: Any | None,
        file: "ModelFile",
    ) -> None:
        self.info = info
        self.file = file
        self.chosen = chosen
        self.cone_share = cone_share  # of a full pass's work
        self.passes = 0.0  # full-pass equivalents x samples executed so far
        self._stem = TensorSession(stem) if stem else None
        self._cone = TensorSession(cone) if cone else None
        self._image = image_axes(info.preprocessing)
        self._affines = {
            name: info.affines[name].shape[1:]
            for layer in chosen
            for norm in info.layers[layer].norms
            for name in (norm.scale, norm.shift)
        }
        self._features = [*(layer.feature for layer in info.layers), EMBEDDING]
        self._outputs = [*info.answers, *self._features]
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        chosen: Sequence[int] | None = None,
        threads: int | None = None,
        provider: str | None = None,
    ) -> "Engine":
        """Open a model to move the affines of the chosen layers: None as calibrated, () none."""
        file = ModelFile(Path(path), threads, provider)
        if chosen is not None and len(chosen) == 0:
            session = file.session(path)
            info = session_info(session, path)
            if any(norm.kind in ("map", "nhwc") or norm.inserted for norm in info.norms):
                session = file.session(find_or_rewrite(file.path, "plain", _plain))
            return cls(info, (), 0.0, session, None, file)
        cut = find_or_cut(file.path, chosen, file.fingerprint)
        cone = file.session(cut.cone)
        stem = cut.stem and file.session(cut.stem)
        info = description(cone, path)
        layers = info.chosen if chosen is None else tuple(sorted(set(chosen)))
        return cls(info, layers, cut.cone_share, stem, cone, file)

    def stem(self, images: Floats) -> Stem:
        """Run what no chosen affine changes; `images` are prepared, [batch, C, H, W]."""
        _check("images", images, self._image)
        tensors = {IMAGE: as_tensor(images)}
        if self._stem:
            tensors |= self._stem.run(tensors)
        self.count(len(images) * (1.0 - self.cone_share))
        handed = self._cone.inputs if self._cone else ()
        return Stem(
            len(images),
            {name: tensors[name] for name in handed},
            as_arrays({name: tensors[name] for name in self._outputs if name in tensors}),
        )

    def cone(self, stem: Stem, affines: Mapping[str, Floats]) -> Outputs:
        """Run the rest with these affines, one for the batch or one for each sample of it."""
        for name, value in affines.items():
            self._check_affine(name, value, stem.batch)
        outputs = dict(stem.outputs)
        if self._cone:
            moved = {name: as_tensor(value) for name, value in affines.items()}
            outputs |= as_arrays(self._cone.run({**stem.handed, **moved}))
            self.count(stem.batch * self.cone_share)
        return self.gathered(outputs)

    def gathered(self, outputs: Mapping[str, Floats]) -> Outputs:
        """A pass's outputs by name; another graph of the same file may leave features out."""
        *names, last = self._features
        features = tuple(outputs[name] for name in names if name in outputs)
        others = {name: outputs[name] for name in self.info.outputs}
        rows = len(next(iter(others.values()))) if others else 0
        logits = np.zeros((rows, self.info.classes), np.float32) if others else outputs[LOGITS]
        return Outputs(logits, features, outputs.get(last, logits[:, :0]), others)

    def _check_affine(self, name: str, value: Floats, batch: int) -> None:
        if name not in self._affines:
            raise ZottaError(f"{name} is no affine of the chosen layers {list(self.chosen)}")
        _check(name, value, self._affines[name])
        if len(value) not in (1, batch):
            raise ZottaError(
                f"{name} has {len(value)} rows for a batch of {batch}: give 1 or {batch}"
            )

    def count(self, passes: float) -> None:
        """Add full passes x samples, which a method may also make in a graph of its own."""
        with self._lock:
            self.passes += passes


class TensorSession:
    """One session whose tensors stay ONNX Runtime's own: nothing is copied on the way."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.inputs = [tensor.name for tensor in session.get_inputs()]
        self._outputs = [tensor.name for tensor in session.get_outputs()]

    def shape(self, name: str) -> list[Any]:
        """As declared for an input; a free axis has a name."""
        return next(list(t.shape) for t in self._session.get_inputs() if t.name == name)

    def __call__(self, arrays: Mapping[str, Floats]) -> dict[str, Floats]:
        """`run`, from arrays to arrays."""
        return as_arrays(self.run({name: as_tensor(array) for name, array in arrays.items()}))

    def run(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        try:
            values = self._session.run_with_ort_values(self._outputs, tensors)
        except ORT_ERRORS as error:
            if "allocate" in str(error):
                raise MemoryError(str(error)) from error
            raise ZottaError(f"onnxruntime could not run the model: {one_line(error)}") from error
        return dict(zip(self._outputs, values, strict=True))


def as_arrays(tensors: Mapping[str, Any]) -> dict[str, Floats]:
    """What a pass gave, for whoever computes with it."""
    arrays: dict[str, Floats] = {name: tensor.numpy() for name, tensor in tensors.items()}
    for name, array in arrays.items():
        if array.size and not (array.min() > -_LARGEST and array.max() < _LARGEST):
            raise NotFiniteError(f"the model's output {name} is not finite for these images")
    return arrays


def as_tensor(values: Floats) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values))


def _check(what: str, values: Floats, axes: tuple[int, ...]) -> None:
    """float32, [at least one, *axes]."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ZottaError(f"{what}: expected a float32 array, got {kind}")
    if values.shape[1:] != axes or len(values) == 0:
        wanted = ", ".join(map(str, axes))
        raise ZottaError(f"{what}: expected [batch, {wanted}], got {list(values.shape)}")


def _plain(content: bytes, path: str) -> bytes:
    from zotta_edge.runtime.engine.fold import without_affines

    return without_affines(content, path)
