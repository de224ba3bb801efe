"""What a model file says about itself, checked against the graph it holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, ModelInfo, Preprocessing, from_metadata
from zotta_edge.sessions import open_session


def read_info(path: str | Path) -> ModelInfo:
    """What an adaptable model file says about itself, checked against its graph."""
    return session_info(open_session(path, optimize=False), path)


def session_info(session: ort.InferenceSession, path: str | Path) -> ModelInfo:
    """`read_info` of a file that is already open."""
    info = description(session, path)
    affines = {name: value.shape[1:] for name, value in info.affines.items()}
    outputs: dict[str, tuple[int | None, ...]] = {EMBEDDING: (None,)}
    outputs |= {layer.feature: (layer.channels,) for layer in info.layers}
    outputs |= info.outputs or {LOGITS: (info.classes,)}
    try:
        _check("input", {IMAGE: image_axes(info.preprocessing)}, session.get_inputs())
        _check("overridable input", affines, session.get_overridable_initializers())
        _check("output", outputs, session.get_outputs())
    except ZottaError as error:
        raise ZottaError(
            f"{path} does not match its description: {error}: export it again"
        ) from None
    return info


def description(session: ort.InferenceSession, path: str | Path) -> ModelInfo:
    """What an open file says about itself, unchecked."""
    try:
        metadata = session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError as error:
        raise ZottaError(
            f"{path} is damaged, its description is no text: export it again"
        ) from error
    return from_metadata(metadata, path)


def image_axes(pixels: Preprocessing) -> tuple[int, int, int]:
    """The axes of one image as the graph takes it."""
    if pixels.layout == "NCHW":
        return pixels.channels, pixels.height, pixels.width
    return pixels.height, pixels.width, pixels.channels


def _check(
    what: str, expected: Mapping[str, tuple[int | None, ...]], present: Sequence[Any]
) -> None:
    """Each expected tensor is there, float32, its first axis free and the others as expected."""
    by_name = {tensor.name: tensor for tensor in present}
    for name, axes in expected.items():
        if name not in by_name:
            raise ZottaError(f"no {what} {name}")
        tensor = by_name[name]
        if tensor.type != "tensor(float)":
            raise ZottaError(f"{what} {name} is {tensor.type}, not float32")
        if not _fits(tensor.shape, axes):
            wanted = ", ".join("?" if axis is None else str(axis) for axis in axes)
            present_axes = ", ".join(str(axis) for axis in tensor.shape)
            raise ZottaError(f"{what} {name} is [{present_axes}], not [any, {wanted}]")


def _fits(shape: Sequence[int | str | None], axes: Sequence[int | None]) -> bool:
    """A symbolic axis may turn out to be anything, a number must be the expected one."""
    return (
        len(shape) == len(axes) + 1
        and not isinstance(shape[0], int)
        and all(
            not isinstance(size, int) or axis in (None, size)
            for size, axis in zip(shape[1:], axes, strict=True)
        )
    )
