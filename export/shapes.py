"""Shapes of all tensors of a graph, as two real runs show them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.graph import first_line, open_session

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

BATCH = -1  # an axis that is as long as the batch
VARYING = -2  # an axis that grows with the batch in another way, such as windows of a batch


def measure_shapes(model: onnx.ModelProto, image: str, shape: Shape) -> dict[str, Shape]:
    """Every tensor's shape, taken from two real runs with a batch of 1 and of 2.

    Inference of symbolic shapes gives up on many real graphs; a run never does.
    """
    one, two = run_shapes(model, image, shape, (1, 2))
    return {
        name: tuple(_axis(*pair) for pair in zip(sizes, two[name], strict=True))
        for name, sizes in one.items()
        if len(sizes) == len(two[name])
    }


def _axis(one: int, two: int) -> int:
    if one == two:
        return one
    return BATCH if (one, two) == (1, 2) else VARYING


def run_shapes(
    model: onnx.ModelProto, image: str, shape: Shape, batches: tuple[int, ...]
) -> list[dict[str, Shape]]:
    """Shapes of all tensors, once for each batch size; `shape` is that of one image."""
    names = [image] + [name for node in model.graph.node for name in node.output if name]
    # Only the shapes leave the session: the tensors themselves may be gigabytes.
    probes = [helper.make_node("Shape", [name], [f"shape of {name}"]) for name in names]
    session = _session_with(model, probes)
    rng = np.random.default_rng(0)
    results = []
    for batch in batches:
        pixels = rng.standard_normal((batch, *shape), dtype=np.float32)
        try:
            values = session.run([probe.output[0] for probe in probes], {image: pixels})
        except Exception as error:
            raise ZottaError(
                f"ONNX Runtime cannot run the model with a batch of {batch} images of shape "
                f"{shape}: {first_line(error)}"
            ) from error
        results.append(
            {name: tuple(map(int, value)) for name, value in zip(names, values, strict=True)}
        )
    return results


def _session_with(model: onnx.ModelProto, extra: list[NodeProto]) -> Any:
    """An unoptimized session of the model plus nodes whose outputs are outputs of the graph."""
    graph = model.graph
    nodes, outputs = len(graph.node), len(graph.output)
    graph.node.extend(extra)
    graph.output.extend(
        helper.make_tensor_value_info(node.output[0], TensorProto.INT64, None) for node in extra
    )
    try:
        return open_session(model, optimize=False)
    finally:
        del graph.node[nodes:]
        del graph.output[outputs:]
