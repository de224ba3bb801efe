"""The model file: what an adaptable ONNX file says about itself, a module a part.

Everything stands in `metadata_props`, under keys that start with `zotta.`, so that ONNX Runtime
alone can read it (`session.get_modelmeta().custom_metadata_map`). Small things are JSON; arrays are
base64 of little-endian numbers.
"""

from zotta_edge.format.calibration import STATISTICS, Calibration
from zotta_edge.format.info import EMBEDDING, IMAGE, LOGITS, ModelInfo, Precision, Recipe
from zotta_edge.format.layers import Layer, Norm
from zotta_edge.format.metadata import FORMAT_VERSION, from_metadata, to_metadata
from zotta_edge.format.moments import Site, SourceMoments
from zotta_edge.format.packing import Floats
from zotta_edge.format.preprocessing import (
    Interpolation,
    Layout,
    Order,
    Preprocessing,
    Trial,
    Tried,
)
from zotta_edge.format.prime import Prime
from zotta_edge.format.reliability import Reliability
from zotta_edge.format.signatures import Signatures
from zotta_edge.tensor_layouts import Kind

__all__ = [
    "EMBEDDING",
    "FORMAT_VERSION",
    "IMAGE",
    "LOGITS",
    "STATISTICS",
    "Calibration",
    "Floats",
    "Interpolation",
    "Kind",
    "Layer",
    "Layout",
    "ModelInfo",
    "Norm",
    "Order",
    "Precision",
    "Preprocessing",
    "Prime",
    "Recipe",
    "Reliability",
    "Signatures",
    "Site",
    "SourceMoments",
    "Trial",
    "Tried",
    "from_metadata",
    "to_metadata",
]
