"""Raise a model's opset to the one that its new nodes need."""

import onnx
from onnx import version_converter

from zotta_edge.errors import ZottaError, one_line
from zotta_edge.graph.nodes import opset


def with_opset(model: onnx.ModelProto, least: int) -> onnx.ModelProto:
    """`model` itself if its opset is `least` or later, else a converted copy."""
    present = opset(model)
    if present >= least:
        return model
    try:
        return version_converter.convert_version(model, least)
    except Exception as error:
        raise ZottaError(
            f"cannot raise the model from opset {present} to {least}, which its quantization needs "
            f"({one_line(error)}): export the source again with a later opset_version"
        ) from error
