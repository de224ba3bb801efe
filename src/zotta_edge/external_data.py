"""Whether a model names other files for its tensors. Needs the onnx package: import it late."""

from itertools import chain

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from zotta_edge.errors import ZottaError


def names_other_files(content: bytes) -> bool:
    """Whether a tensor anywhere in the model, in branches too, is stored in another file."""
    try:
        return _any_external(ModelProto.FromString(content))
    except (DecodeError, RecursionError):
        raise ZottaError("a model is damaged: copy or export it again") from None


def _any_external(message: Message) -> bool:
    if isinstance(message, TensorProto):
        return bool(message.external_data) or message.data_location == TensorProto.EXTERNAL
    values = [value for field, value in message.ListFields() if field.message_type]
    parts = chain.from_iterable([each] if isinstance(each, Message) else each for each in values)
    return any(_any_external(part) for part in parts)
