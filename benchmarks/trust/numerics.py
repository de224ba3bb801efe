"""Numbers at the edge of what floats can hold: finite everywhere, for every method.

    python benchmarks/trust/numerics.py

Denormal, constant, saturated and one-image batches go through each method, on the models that ship
inside and on copies with a dead channel, a source without any spread, and a head so large that the
softmax saturates. Every answer and every state must be finite, or the batch refused in one line.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from study import Record, stream

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.format import Floats, to_metadata
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.runtime.methods.registry import METHODS

TINY = np.float32(1e-42)  # a denormal


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record = Record("numerics")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        for model, path in models(Path(folder)):
            for method in args.methods.split(","):
                with record.step(f"{method} on {model}"):
                    _tried(record, f"{method} on {model}", path, method, args.repeat)
    return record.close()


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    yield "ViT", embedded.MODEL
    yield "ResNet", embedded.RESNET
    yield "ViT with a dead channel", _edited(folder / "dead.onnx", _dead)
    yield "ViT without spread", _flat(folder / "flat.onnx")
    yield "ViT with a saturated softmax", _edited(folder / "sure.onnx", _sure)


def _edited(path: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(embedded.MODEL)
    edit(model)
    onnx.save(model, path)
    return path


def _dead(model: onnx.ModelProto) -> None:
    """The first three channels of every norm's affine are nought."""
    names = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            value = numpy_helper.to_array(tensor).copy()
            value[..., :3] = 0
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def _sure(model: onnx.ModelProto) -> None:
    """Logits some 1e4 times as large: probabilities are 0 and 1."""
    (logits,) = [node for node in model.graph.node if "logits" in node.output]
    logits.output[list(logits.output).index("logits")] = "small"
    factor = numpy_helper.from_array(np.float32(1e4), "factor")
    model.graph.initializer.append(factor)
    model.graph.node.append(onnx.helper.make_node("Mul", ["small", "factor"], ["logits"]))


def _flat(path: Path) -> Path:
    """Calibrated on images that are all the same: no feature varies."""
    info = read_info(embedded.MODEL)
    assert info.calibration is not None
    nought = {
        name: _nought(value) for name, value in vars(info.calibration).items() if "std" in name
    }
    told = to_metadata(info.with_calibration(replace(info.calibration, **nought)))
    model = onnx.load(embedded.MODEL)
    entries = {entry.key: entry.value for entry in model.metadata_props} | told
    onnx.helper.set_model_props(model, entries)
    onnx.save(model, path)
    return path


def _nought(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return tuple(map(_nought, value)) if isinstance(value, tuple | list) else value


def batches(model: AdaptiveModel) -> Iterator[tuple[str, Floats]]:
    pixels = model.info.preprocessing
    clean = as_batch(stream()[:16], pixels)
    black, white = clean.min(), clean.max()
    yield "denormal", np.full_like(clean, TINY)
    yield "denormal, alternating", clean * 0 + TINY * np.sign(clean)
    yield "constant", np.full_like(clean, 0.3)
    yield "black", np.full_like(clean, black)
    yield "white", np.full_like(clean, white)
    yield "beyond white", np.full_like(clean, 8 * white)
    yield "one image", clean[:1]
    yield "one image, many times", np.repeat(clean[:1], 16, axis=0)
    yield "checkerboard", np.where(np.indices(clean.shape).sum(axis=0) % 2, 8 * white, 8 * black)
    yield "ordinary", clean


def _tried(record: Record, where: str, path: Path, method: str, repeat: int) -> None:
    try:
        model = AdaptiveModel.load(path, method=method, threads=1)
    except ZottaError:
        record.saw("models refused by a method")
        return
    for name, batch in list(batches(model)) * repeat:
        for part in (batch, batch[:1]):
            with record.step(f"{where}, {name}"):
                result = model.predict_prepared(part.astype(np.float32))
                _finite(record, f"{where}, {name}", model, result.logits)
    record.saw("batches", 2 * repeat * len(list(batches(model))))


def _finite(record: Record, where: str, model: AdaptiveModel, logits: Floats) -> None:
    record.require(np.isfinite(logits).all(), f"{where}: the answer is not finite")
    fresh = _not_finite(model)
    record.require(not fresh, f"{where}: {fresh} became not finite")


def _not_finite(model: AdaptiveModel) -> list[str]:
    """Fields that are not finite, but for those that are not in a new model either."""
    odd = [
        name
        for name, array in model.arrays().items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    ]
    new = AdaptiveModel.load(embedded.MODEL, method=model.method, threads=1).arrays() if odd else {}
    return [name for name in odd if name not in new or np.isfinite(new[name]).all()]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", default=",".join(METHODS), help="default: all")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of all batches")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
