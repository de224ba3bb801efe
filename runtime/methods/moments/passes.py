"""Passes of a model that aligns its channel moments: a stem, and a cone that takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE, Floats
from zotta_edge.format.moments import SourceMoments
from zotta_edge.runtime.engine.cache import Cut, find_or_halve
from zotta_edge.runtime.engine.engine import (
    Engine,
    ModelFile,
    Outputs,
    TensorSession,
    as_arrays,
    as_tensor,
)
from zotta_edge.runtime.methods.moments.running import AT_SOURCE, Share

_NAME = "zotta.moments."  # of inputs and outputs: graph.py, which a cached start does not import


@dataclass(frozen=True)
class Begun:
    """A batch whose stem has run."""

    images: Floats  # as they went in
    handed: Mapping[str, Any]  # tensors, still ONNX Runtime's own
    outputs: Mapping[str, Floats]
    first: Floats  # [batch, 2 C], the first site's instance moments: those of the stream alone


class MomentPasses:
    """Runs the file's rewritten graph; the affine that answers is made in the pass itself."""

    def __init__(self, engine: Engine) -> None:
        file, cut = engine.file, _cut(engine.file)
        if cut.stem is None:
            raise ZottaError(f"{file.path} has no tensor whose moments could be aligned")
        self._engine, self._file, self.stem_share = engine, file, 1 - cut.cone_share
        self._stem, self._cone = (TensorSession(file.session(x)) for x in (cut.stem, cut.cone))

    def begin(self, images: Floats) -> Begun:
        tensors = self._stem.run({IMAGE: as_tensor(images)}) | {IMAGE: as_tensor(images)}
        self._engine.count(len(images) * self.stem_share)
        handed = {name: tensors[name] for name in self._cone.inputs if name in tensors}
        finished = {name: value for name, value in tensors.items() if name not in handed}
        outputs = as_arrays(finished | {f"{_NAME}first": tensors[f"{_NAME}first"]})
        return Begun(images, handed, outputs, outputs[f"{_NAME}first"])

    def finish(
        self, begun: Begun, running: Floats, share: Share, noise: float = AT_SOURCE
    ) -> tuple[Outputs, Floats]:
        """Answers, and every image's own moments [batch, 2 D]."""
        moments = {
            "running": running,
            "keep": np.array([share.keep], np.float32),
            "weights": share.weights.astype(np.float32)[:, None],
            "noise": np.array([noise], np.float32),
        }
        given = {f"{_NAME}{name}": as_tensor(value) for name, value in moments.items()}
        return self._finished(begun, self._cone.run({**begun.handed, **given}))

    def settle(self, source: SourceMoments, running: Floats, noise: float) -> TensorSession:
        """A cone that aligns by these moments for good, at the price of plain inference."""
        from zotta_edge.runtime.methods.moments.settled import settled

        cone = _cut(self._file).cone
        content = cone if isinstance(cone, bytes) else cone.read_bytes()
        made = settled(content, str(self._file.path), source, running, noise)
        return TensorSession(self._file.session(made))

    def finish_settled(self, begun: Begun, cone: TensorSession) -> tuple[Outputs, Floats]:
        """As `finish`, by what `settle` gave."""
        return self._finished(begun, cone.run(begun.handed))

    def _finished(self, begun: Begun, tensors: Mapping[str, Any]) -> tuple[Outputs, Floats]:
        outputs = dict(begun.outputs) | as_arrays(tensors)
        self._engine.count(len(begun.images) * (1 - self.stem_share))
        return self._engine.gathered(outputs), outputs[f"{_NAME}instance"]


def _cut(file: ModelFile) -> Cut:
    return find_or_halve(file.path, "channel moments", _halves, file.fingerprint)


def _halves(content: bytes, path: str) -> Any:
    from zotta_edge.runtime.methods.moments.graph import with_moments

    return with_moments(content, path)
