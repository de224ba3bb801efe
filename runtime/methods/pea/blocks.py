"""A model block by block, so that something can be done to the features in between."""

from collections.abc import Callable
from functools import partial

import numpy as np

from zotta_edge.format import IMAGE, LOGITS, Floats, Layer, ModelInfo
from zotta_edge.runtime.engine.engine import Engine
from zotta_edge.tensor_layouts import LAYOUTS

Between = Callable[[int, Floats], Floats]  # block, its features [position, channel] -> others


def blocks_of(info: ModelInfo) -> list[Layer]:
    """All layers but a norm that stands alone before the classifier."""
    return [layer for layer in info.layers if [norm.name for norm in layer.norms] != [layer.name]]


class Blocks:
    """One session for each block, and one for what follows the last."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.layers = engine, blocks_of(engine.info)
        self._sessions = [
            engine.file.rewritten(f"block {index}", partial(_block, index=index))
            for index in range(len(self.layers) + 1)
        ]

    def __call__(self, images: Floats, between: Between) -> Floats:
        """Logits, with the features of all samples of every block seen and replaced."""
        entry, features = IMAGE, images
        for index, (layer, session) in enumerate(zip(self.layers, self._sessions, strict=False)):
            feed = {IMAGE: images, entry: features}
            out = session({name: feed[name] for name in session.inputs})[layer.tensor]
            rows, channel = np.moveaxis(out, LAYOUTS[layer.kind].channel_axis, -1), out.ndim
            aligned = between(index, rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)
            features = np.moveaxis(aligned, channel - 1, LAYOUTS[layer.kind].channel_axis)
            entry = layer.tensor
        last = self._sessions[-1]
        feed = {IMAGE: images, entry: features}
        logits = last({name: feed[name] for name in last.inputs})[LOGITS]
        self._engine.count(len(images))
        return logits


def _block(content: bytes, path: str, index: int) -> bytes:
    from zotta_edge.format import from_metadata
    from zotta_edge.graph.subgraph import between, parse

    model = parse(content, path)
    info = from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    tensors = [IMAGE, *(layer.tensor for layer in blocks_of(info)), LOGITS]
    part = between(model, tensors[index], tensors[index + 1])
    return bytes(part.SerializeToString(deterministic=True))
