"""FP8: weights stored as E4M3, activations rounded to E4M3 with a few fp32 operations.

A CPU has no FP8 arithmetic: this buys file size and the numerics of an FP8 accelerator, not speed.
"""

import math

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, helper

from zotta_edge.export.quantize.weighted import (
    Weighted,
    copy_of,
    find_weighted,
    reads_image,
    store_folded,
)
from zotta_edge.export.sources.opset import with_opset
from zotta_edge.format import IMAGE, Floats
from zotta_edge.graph.index import Graph
from zotta_edge.sessions import open_session

LARGEST = 448.0  # E4M3 number; there are no infinities
SMALLEST_NORMAL = 2.0**-6
_DROPPED = 2.0**20  # fp32 has 24 significant bits, E4M3 has 4
_HEADROOM = 8.0  # by how much an activation may outgrow what was seen before it saturates
_SAMPLES = 8
_OPSET, _IR_VERSION = 19, 9  # the first that know float8


def quantize_fp8(
    model: onnx.ModelProto, images: Floats | None = None
) -> tuple[onnx.ModelProto, str]:
    """The adaptable fp32 model in E4M3, and a one-line description of the recipe.

    Rounded are the weights and the input activations of every MatMul, Gemm and Conv that has
    weights. The image is left alone (its 8 bits do not fit E4M3's 4), and so are products of two
    activations (attention).
    """
    quantized = with_opset(copy_of(model), _OPSET)
    quantized.ir_version = max(quantized.ir_version, _IR_VERSION)
    graph = Graph(quantized)
    weighted = find_weighted(graph)
    scales = _activation_scales(quantized, _activations(graph, weighted), images)
    for item in weighted:
        x = item.node.input[0]
        scale = item.largest() / np.float32(LARGEST)
        codes = (item.weight / scale).astype(ml_dtypes.float8_e4m3fn)
        store_folded(graph, item, codes, scale * np.float32(_DROPPED if x in scales else 1))
        if x in scales:
            if f"{x}.r" not in graph.producers:
                graph.insert_before(item.node, _round_activation(graph, x, scales[x]))
            graph.set_input(item.node, 0, f"{x}.r")
    graph.finish()
    return quantized, "E4M3 weights per channel; E4M3 activations, static power-of-two scales"


def _activations(graph: Graph, weighted: list[Weighted]) -> list[str]:
    """Inputs of weighted nodes, each once, except those computed from the image alone."""
    inputs = (item.node.input[0] for item in weighted if not reads_image(graph, item))
    return list(dict.fromkeys(inputs))


def _round_activation(graph: Graph, x: str, scale: float) -> list[NodeProto]:
    """`x` rounded to E4M3 numbers times `scale` (a power of two), divided by 2^20.

    c = clip(x), g = max(|c|, 1.5 * smallest normal), r = (2^-20 c + g) - g: next to the 2^20 times
    larger g only four significant bits of c are left, and for subnormals a grid of 2^-9. Weights
    absorb the 2^20. Six fp32 passes cost a tenth of Cast to float8 and back, which is scalar.
    Exact, ties to even included, but for the topmost 8 of the 2^23 floats below a power of two,
    which may round down.
    """

    def constant(name: str, value: float) -> str:
        return graph.add_constant(f"{name}{value:g}", np.array(value, np.float32))

    low, high = constant("e4m3.min", -LARGEST * scale), constant("e4m3.max", LARGEST * scale)
    floor = constant("e4m3.floor", 1.5 * SMALLEST_NORMAL * scale)
    shrink = constant("e4m3.shrink", 1 / _DROPPED)
    return [
        helper.make_node("Clip", [x, low, high], [f"{x}.c"]),
        helper.make_node("Abs", [f"{x}.c"], [f"{x}.a"]),
        helper.make_node("Max", [f"{x}.a", floor], [f"{x}.g"]),
        helper.make_node("Mul", [f"{x}.c", shrink], [f"{x}.m"]),
        helper.make_node("Add", [f"{x}.m", f"{x}.g"], [f"{x}.t"]),
        helper.make_node("Sub", [f"{x}.t", f"{x}.g"], [f"{x}.r"]),
    ]


def _activation_scales(
    model: onnx.ModelProto, tensors: list[str], images: Floats | None
) -> dict[str, float]:
    """The power of two for each tensor that leaves `_HEADROOM` above the largest value seen."""
    if not tensors:  # a session that is asked for nothing answers with all that it has
        return {}
    probe = copy_of(model)
    for x in tensors:
        probe.graph.node.append(helper.make_node("Abs", [x], [f"{x}.a"]))
        probe.graph.node.append(helper.make_node("ReduceMax", [f"{x}.a"], [f"{x}.x"], keepdims=0))
        probe.graph.output.add().name = f"{x}.x"
    images = _noise(model) if images is None else images[:_SAMPLES]
    largest = open_session(probe.SerializeToString()).run(
        [f"{x}.x" for x in tensors], {IMAGE: images}
    )
    exponents = [
        math.ceil(math.log2(max(float(value), 1e-6) * _HEADROOM / LARGEST)) for value in largest
    ]
    return dict(zip(tensors, (2.0**exponent for exponent in exponents), strict=True))


def _noise(model: onnx.ModelProto) -> Floats:
    """Used without images: as spread out as normalised pixels, and the headroom covers the rest."""
    image = next(value for value in model.graph.input if value.name == IMAGE)
    shape = [axis.dim_value for axis in image.type.tensor_type.shape.dim][1:]
    return np.random.default_rng(0).standard_normal((_SAMPLES, *shape), dtype=np.float32)
