"""Mean and covariance of every block's tokens or pixels on the source, for --method pea."""

from pathlib import Path

import numpy as np

from zotta_edge.calibration.features import by_layer, in_batches
from zotta_edge.files import replacing
from zotta_edge.format import Floats, Layer, ModelInfo
from zotta_edge.progress import Progress
from zotta_edge.runtime.methods.pea.blocks import blocks_of
from zotta_edge.runtime.methods.pea.statistics import Gaussian
from zotta_edge.runtime.watch.statistics import Doubles
from zotta_edge.tensor_layouts import LAYOUTS


def write_token_statistics(
    model: Path, info: ModelInfo, images: Floats, output: Path, threads: int | None = None
) -> None:
    """One mean [C] and one covariance [C, C] a block, in an .npz."""
    wanted, found = {layer.name for layer in blocks_of(info)}, dict[str, Doubles]()
    with Progress("measuring covariances", len(info.layers)) as progress:
        tensors = by_layer(model, info, in_batches(images), threads)
        for layer, batches in zip(info.layers, tensors, strict=True):
            if layer.name in wanted:
                axis = LAYOUTS[layer.kind].channel_axis
                rows = [
                    np.moveaxis(batch, axis, -1).reshape(-1, layer.channels) for batch in batches
                ]
                own = Gaussian.of(np.concatenate(rows))
                found |= {f"{layer.name}.mean": own.mean, f"{layer.name}.cov": own.covariance}
            progress.advance(note=layer.name)
    with replacing(output) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **found)  # type: ignore[arg-type]  # its stubs see allow_pickle


def _rows(batch: Floats, layer: Layer) -> Floats:
    """[position, channel]."""
    last: Floats = np.moveaxis(batch, LAYOUTS[layer.kind].channel_axis, -1)
    return last.reshape(-1, layer.channels)
