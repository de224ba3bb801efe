"""Reads or builds SOURCE as an fp32 ONNX model."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from zotta_edge.errors import ZottaError
from zotta_edge.files import check_file
from zotta_edge.format import Preprocessing
from zotta_edge.sessions import open_session

_TIMM = "timm:"


@dataclass(frozen=True)
class Source:
    """An fp32 classifier, with the preprocessing its origin prescribes."""

    model: onnx.ModelProto
    name: str
    preprocessing: Preprocessing | None = None  # None: the origin does not say


def load_source(
    source: str,
    *,
    weights: Path | None = None,
    random_weights: bool = False,
    size: tuple[int, int] | None = None,
) -> Source:
    """Read or build an fp32 classifier.

    Parameters
    ----------
    source
        An .onnx file, `timm:NAME`, `package.module:factory`, or the name of an architecture.
    weights
        Checkpoint to load into a torch module.
    random_weights
        Seeded weights instead.
    size
        Height and width, for torch modules that do not tell theirs.

    Raises
    ------
    ZottaError
        If the source cannot be read, built, or run by ONNX Runtime.

    >>> source = load_source("digits_resnet_gn", random_weights=True)
    >>> source.name, source.model.graph.output[0].name, source.preprocessing.height
    ('digits_resnet_gn', 'logits', 32)
    """
    if source.endswith(".onnx") or Path(source).exists():
        if weights or random_weights:
            raise ZottaError(f"{source} has its weights inside: leave --weights out")
        return Source(read_onnx(Path(source)), Path(source).stem)
    try:
        from zotta_edge.export.sources import torch_source
    except ImportError as error:
        raise ZottaError(
            f"exporting {source!r} needs {error.name or 'torch'}: "
            "install it with `pip install 'zotta-edge[export]'`"
        ) from error
    if source.startswith(_TIMM):
        built = torch_source.from_timm(source.removeprefix(_TIMM), weights, random_weights)
    elif ":" in source:
        built = torch_source.from_factory(source, weights, random_weights)
    else:
        built = torch_source.from_registry(source, weights, random_weights)
    preprocessing = _resized(built.preprocessing, size)
    if preprocessing:
        size = preprocessing.height, preprocessing.width
    if size is None:
        raise ZottaError(f"{source} does not tell its input size: give it, such as --size 224")
    return Source(torch_source.to_onnx(built.module, built.name, size), built.name, preprocessing)


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read a model that is complete in one file; refuse anything else with the reason."""
    if path.is_dir():
        raise ZottaError(f"{path} is a folder: name the .onnx file in it")
    check_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ZottaError(f"cannot read {path}: {error.strerror or error}") from error
    if not content:
        raise ZottaError(f"{path} is empty")
    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise ZottaError(f"{path} is not an ONNX file, or it is cut short") from error
    _check(model, path)
    return model


def _check(model: onnx.ModelProto, path: Path) -> None:
    if not model.graph.node or not model.opset_import:
        raise ZottaError(f"{path} is not an ONNX file: it holds no graph")
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _tensors(model.graph)):
        raise ZottaError(
            f"{path} keeps its weights in other files (external data): put everything into one "
            "file with onnx.save(onnx.load(PATH), NEW_PATH)"
        )
    if not all(isinstance(name, str) for name in _names(model.graph)):  # bytes: no UTF-8
        raise ZottaError(f"{path} is damaged: a name in it is not valid text")
    # Not onnx.checker: it refuses operators that only ONNX Runtime knows, such as
    # SimplifiedLayerNormalization.
    open_session(path, threads=1, optimize=False)


def _names(graph: onnx.GraphProto) -> Iterable[str]:
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    yield from (value.name for value in (*graph.initializer, *graph.input, *graph.output))


def _tensors(graph: onnx.GraphProto) -> Iterable[onnx.TensorProto]:
    """All tensors in `graph`, those in attributes and in branches included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for branch in (attribute.g, *attribute.graphs):
                yield from _tensors(branch)


def _resized(
    preprocessing: Preprocessing | None, size: tuple[int, int] | None
) -> Preprocessing | None:
    """The same preparation for another input size, the crop's share of the image kept."""
    if preprocessing is None or size is None:
        return preprocessing
    height, width = size
    resize = preprocessing.resize
    if resize:
        resize = round(resize * min(size) / min(preprocessing.height, preprocessing.width))
    return replace(preprocessing, height=height, width=width, resize=resize)
