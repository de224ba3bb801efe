"""Raise a model's opset to the one that its new nodes need."""

import onnx
from onnx import version_converter

from zotta_edge.errors import ZottaError
from zotta_edge.export.graph import Graph, first_line


def with_opset(model: onnx.ModelProto, least: int) -> onnx.ModelProto:
    """`model` itself if its opset is `least` or later, else a converted copy."""
    opset = Graph(model).opset
    if opset >= least:
        return model
    try:
        return version_converter.convert_version(model, least)
    except Exception as error:
        raise ZottaError(
            f"cannot raise the model from opset {opset} to {least}, which its quantization needs "
            f"({first_line(error)}): export the source again with a later opset_version"
        ) from error
