"""The un-pooled features of every layer, one layer at a time.

ONNX Runtime executes the whole graph whatever outputs are asked for, and all tokens of all layers
would fill the memory of a small device. So the graph is cut between the layers: each subgraph takes
the batches that left the one before it and replaces them. All of them together cost one forward
pass, and only one layer's features are ever held.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from zotta_edge.format import IMAGE, Floats, Kind, ModelInfo
from zotta_edge.sessions import open_session
from zotta_edge.tensor_layouts import LAYOUTS

GRID = 8  # a map larger than 8 x 8 is looked at on a regular grid of that size; tokens all count
BATCH = 16  # images a forward pass
CHUNK = 8  # positions gathered at once: what one clustering takes (purity.py)


def in_batches(images: Floats) -> list[Floats]:
    return [images[start : start + BATCH] for start in range(0, len(images), BATCH)]


def by_layer(
    path: str | Path, info: ModelInfo, batches: Sequence[Floats], threads: int | None = None
) -> Iterator[list[Floats]]:
    """For each layer in order, its tensor for every batch, in the shape of its kind.

    The list is reused for the next layer, so what is wanted from it must be taken at once. Under
    dynamic quantization the samples of a batch share their activation ranges.
    """
    from zotta_edge.graph.subgraph import between, parse

    model = parse(Path(path).read_bytes(), str(path))
    entry, current = IMAGE, list(batches)
    for layer in info.layers:
        subgraph = between(model, entry, layer.tensor)
        session = open_session(subgraph.SerializeToString(), threads=threads)
        inputs = [value.name for value in subgraph.graph.input]
        for index, images in enumerate(batches):
            feed = {IMAGE: images, entry: current[index]}
            (current[index],) = session.run(None, {name: feed[name] for name in inputs})
        yield current
        entry = layer.tensor


def at_positions(tensors: Sequence[Floats], kind: Kind) -> Iterator[Floats]:
    """The feature vectors of all samples at each position, in chunks of [position, sample, C]."""
    tensors = [np.moveaxis(tensor, LAYOUTS[kind].channel_axis, -1) for tensor in tensors]
    where = _grid(tensors[0].shape[1:-1])
    flat = [tensor.reshape(len(tensor), -1, tensor.shape[-1]) for tensor in tensors]
    for start in range(0, len(where), CHUNK):
        vectors = np.concatenate([tensor[:, where[start : start + CHUNK]] for tensor in flat])
        yield np.ascontiguousarray(vectors.swapaxes(0, 1))


def _grid(sizes: Sequence[int]) -> list[int]:
    """Flat indices on the grid of a map [height, width], and of all tokens [count].

    A vector [] has a single position.
    """
    if len(sizes) < 2:
        return list(range(sizes[0])) if sizes else [0]
    height, width = sizes
    return [row * width + column for row in _spread(height) for column in _spread(width)]


def _spread(size: int) -> list[int]:
    """All of range(size), or `GRID` of it at equal distances, half a step from either end."""
    count = min(size, GRID)
    return [int((index + 0.5) * size / count) for index in range(count)]
