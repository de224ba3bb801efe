"""Raise a model's opset to the one that its new nodes need."""

import onnx
from onnx import helper, version_converter

from zotta_edge.errors import ZottaError, one_line
from zotta_edge.graph.nodes import opset

_RESIZE_TELLS_HOW = 11  # the first opset in which Resize says where its samples lie


def with_opset(model: onnx.ModelProto, least: int) -> onnx.ModelProto:
    """`model` itself if its opset is `least` or later, else a converted copy."""
    present = opset(model)
    if present >= least:
        return model
    try:
        converted = version_converter.convert_version(model, least)
    except Exception as error:
        raise ZottaError(
            f"cannot raise the model from opset {present} to {least}, which its export needs "
            f"({one_line(error)}): export the source again with a later opset_version"
        ) from error
    if present < _RESIZE_TELLS_HOW:
        _keep_sample_positions(converted)
    return converted


def _keep_sample_positions(model: onnx.ModelProto) -> None:
    """Upsample and the first Resize sampled at x / scale; onnx's converter leaves the new default.

    That default is (x + 0.5) / scale - 0.5: other pixels, and other logits.
    """
    positions = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for node in model.graph.node:
        if node.op_type == "Resize":
            kept = [item for item in node.attribute if item.name not in positions]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.extend(helper.make_attribute(*item) for item in positions.items())
