"""Metadata of an ONNX file, replaced without parsing the graph.

A model is a protobuf message, a row of fields. All but the metadata are copied as they stand: the
graph stays byte for byte the same, and a large model needs no more memory than a small one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing

_METADATA = 14  # the field's number in onnx.ModelProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_BLOCK = 2**20


def replace_metadata(source: Path, target: Path, metadata: Mapping[str, str], prefix: str) -> None:
    """Copy `source` to `target`, atomically, with `metadata` for its entries under `prefix`."""
    import onnx

    entries = onnx.ModelProto()
    with (
        replacing(target) as temporary,
        source.open("rb") as stream,
        temporary.open("wb") as copy,
    ):
        for number, head, size in _fields(stream, source):
            if number == _METADATA:
                entries.metadata_props.add().ParseFromString(stream.read(size))
            else:
                copy.write(head)
                _copy(stream, copy, size)
        kept = {e.key: e.value for e in entries.metadata_props if not e.key.startswith(prefix)}
        onnx.helper.set_model_props(entries, kept | dict(metadata))
        copy.write(entries.SerializeToString())


def _fields(stream: BinaryIO, path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Number, leading bytes and size of what follows, for each field; that must be read between."""
    while tag := _varint(stream):
        number, wire = divmod(_value(tag), 8)
        if wire == _BYTES:
            length = _varint(stream)
            yield number, tag + length, _value(length)
        elif wire == _VARINT:
            yield number, tag + _varint(stream), 0
        elif wire in (_FIXED64, _FIXED32):
            yield number, tag, 8 if wire == _FIXED64 else 4
        else:
            raise ZottaError(f"{path} is damaged: copy or export it again")


def _varint(stream: BinaryIO) -> bytes:
    """The bytes of one variable-length integer: all but the last have their high bit set."""
    read = byte = stream.read(1)
    while byte and byte[0] & 0x80:
        byte = stream.read(1)
        read += byte
    return read


def _value(varint: bytes) -> int:
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(varint))


def _copy(stream: BinaryIO, copy: BinaryIO, size: int) -> None:
    while size and (block := stream.read(min(size, _BLOCK))):
        copy.write(block)
        size -= len(block)
