"""What a graph itself shows that keeps it from being exported: all of it at once."""

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
from onnx import numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.sources.inputs import input_obstacles

_RANDOM = (
    *("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike"),
    *("Bernoulli", "Multinomial"),
)


class UnsuitableError(ZottaError):
    """A model that cannot be exported as it is; each obstacle with its way out."""

    def __init__(self, obstacles: list[str]) -> None:
        self.obstacles = obstacles
        numbered = (f"({place}) {text}" for place, text in enumerate(obstacles, 1))
        several = f"{len(obstacles)} obstacles: {'; '.join(numbered)}"
        super().__init__(obstacles[0] if len(obstacles) == 1 else several)


@contextmanager
def one_line_errors(source: str) -> Iterator[None]:
    """Turn any unforeseen failure on a foreign graph into a one-line error."""
    try:
        yield
    except (ZottaError, MemoryError, OSError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ZottaError(
            f"{source} cannot be exported, its graph is inconsistent or uses what zotta-edge does "
            f"not know ({type(error).__name__}: {reason})"
        ) from error


def refuse_unsuitable(model: onnx.ModelProto, size: tuple[int, int] | None) -> None:
    """Raise one error that names every obstacle."""
    found = [
        *_exported(model),
        *_random(model),
        *input_obstacles(model, size),
    ]
    if found:
        raise UnsuitableError(found)


def _exported(model: onnx.ModelProto) -> list[str]:
    if any(entry.key == "zotta.format" for entry in model.metadata_props):
        return ["the model is already exported by zotta-edge: export the model it was made from"]
    return []


def _random(model: onnx.ModelProto) -> list[str]:
    """Nodes that draw numbers: no two answers are the same, and no check could pass."""
    names = [
        f"{node.op_type} {node.name}".strip() for node in model.graph.node if _draws(model, node)
    ]
    if not names:
        return []
    return [
        f"it draws random numbers ({names[0]}, {len(names)} in all), as networks in training do: "
        "export it in inference mode, in torch after model.eval()"
    ]


def _draws(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        training = stored.get(node.input[2])
        return training is not None and bool(numpy_helper.to_array(training).all())
    return node.op_type in _RANDOM
