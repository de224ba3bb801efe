"""Qwen2.5-VL's eyes as an ONNX graph: images of one size in, rows of `image_embeds` out.

The size is fixed when the graph is written, so that windows, positions and the order of patches
are constants.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from torch import nn

from zotta_edge.decoder_format import IMAGE_ROWS
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.from_torch import as_array
from zotta_edge.export.decoders.ops import Ops
from zotta_edge.format import IMAGE, Floats

_EPSILON = 1e-6  # of its norms, fixed in the model
_APART = -1e9
_BASE = 10000.0


@dataclass(frozen=True)
class Eyes:
    """A vision tower for images of one size."""

    config: Any
    weights: Mapping[str, Floats]
    height: int
    width: int

    @classmethod
    def of(cls, module: nn.Module, height: int, width: int) -> "Eyes":
        """The tower of a Qwen2.5-VL model."""
        tower: Any = module.model.visual  # type: ignore[union-attr]
        step = tower.config.patch_size * tower.config.spatial_merge_size
        if height % step or width % step:
            raise ZottaError(f"image size {height} x {width}: both must be multiples of {step}")
        weights = {name: as_array(value) for name, value in tower.state_dict().items()}
        return cls(tower.config, weights, height, width)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.config.patch_size, self.width // self.config.patch_size

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of image tokens."""
        merge = self.config.spatial_merge_size
        return self.grid[0] // merge, self.grid[1] // merge


@dataclass(frozen=True, eq=False)
class _Layout:
    """The patches of an image in the order of their windows."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    windows: NDArray[np.int64]  # which window a patch is in
    back: NDArray[np.int64]  # from image tokens in this order to those in reading order


def vision_graph(eyes: Eyes) -> onnx.ModelProto:
    """`image` [images, C, height, width] -> `image_embeds` [images * tokens, hidden]."""
    ops, config, layout = Ops(), eyes.config, _layout(eyes)
    channels, patch = config.in_channels, config.patch_size
    image = ops.input(IMAGE, np.float32, ["images", channels, eyes.height, eyes.width])
    rows, columns = eyes.grid
    parts = ops("Reshape", image, ops.numbers(0, channels, rows, patch, columns, patch))
    parts = ops("Transpose", parts, perm=[0, 2, 4, 1, 3, 5])
    flat = ops("Reshape", parts, ops.numbers(0, rows * columns, channels * patch * patch))
    order = ops.constant("order", layout.rows * columns + layout.columns)
    # A still image is a film of equal frames: their kernels add up.
    kernel = eyes.weights["patch_embed.proj.weight"].sum(axis=2).reshape(config.hidden_size, -1)
    x = ops.linear(ops("Gather", flat, order, axis=1), {"patch.weight": kernel}, "patch")
    _angles(ops, config, layout)
    apart = layout.windows[:, None] != layout.windows
    bias = ops.constant("windows", np.where(apart, np.float32(_APART), np.float32(0)))
    for number in range(config.depth):
        whole = number in config.fullatt_block_indexes
        x = _block(ops, eyes, f"blocks.{number}", x, "" if whole else bias)
    _merge(ops, eyes, layout, x)
    ops.output(IMAGE_ROWS, ["image_tokens", config.out_hidden_size])
    return ops.model("vision")


def _layout(eyes: Eyes) -> _Layout:
    config = eyes.config
    merge = config.spatial_merge_size
    side = config.window_size // merge // config.patch_size
    places = np.stack(np.divmod(np.arange(np.prod(eyes.places)), eyes.places[1]), axis=1)
    window = (places[:, 0] // side) * (eyes.places[1] // side + 1) + places[:, 1] // side
    order = np.argsort(window, kind="stable")
    inner = np.stack(np.divmod(np.arange(merge * merge), merge), axis=1)
    patches = (places[order][:, None] * merge + inner).reshape(-1, 2)
    windows = np.repeat(window[order], merge * merge)
    return _Layout(patches[:, 0], patches[:, 1], windows, np.argsort(order))


def _angles(ops: Ops, config: Any, layout: _Layout) -> None:
    """Half of a head turns with the row of its patch, half with the column."""
    quarter = config.hidden_size // config.num_heads // 4
    steps = 1 / _BASE ** (np.arange(quarter, dtype=np.float32) / quarter)
    angles = np.concatenate([layout.rows[:, None] * steps, layout.columns[:, None] * steps], 1)
    ops.constant("cos", np.cos(angles.astype(np.float32)))
    ops.constant("sin", np.sin(angles.astype(np.float32)))


def _block(ops: Ops, eyes: Eyes, path: str, x: str, bias: str) -> str:
    weights = eyes.weights
    y = _norm(ops, weights, f"{path}.norm1", x)
    x = ops("Add", x, _attention(ops, eyes, f"{path}.attn", y, bias))
    y = _norm(ops, weights, f"{path}.norm2", x)
    gate = ops.silu(ops.linear(y, weights, f"{path}.mlp.gate_proj"))
    product = ops("Mul", gate, ops.linear(y, weights, f"{path}.mlp.up_proj"))
    return ops("Add", x, ops.linear(product, weights, f"{path}.mlp.down_proj"))


def _attention(ops: Ops, eyes: Eyes, path: str, x: str, bias: str) -> str:
    heads, width = eyes.config.num_heads, eyes.config.hidden_size
    dim = width // heads
    parts = {}
    for place, name in enumerate(("query", "key", "value")):
        rows = slice(place * width, (place + 1) * width)
        own = {f"{path}.{name}.{kind}": eyes.weights[f"{path}.qkv.{kind}"][rows]
               for kind in ("weight", "bias")}  # fmt: skip
        y = ops.linear(x, own, f"{path}.{name}")
        split = ops("Reshape", y, ops.numbers(0, 0, heads, dim))
        parts[name] = ops("Transpose", split, perm=[0, 2, 1, 3])
    query, key = (ops.rotate(parts[name], dim) for name in ("query", "key"))
    scaled = ops("Mul", query, ops.scalar(dim**-0.5))
    scores = ops("MatMul", scaled, ops("Transpose", key, perm=[0, 1, 3, 2]))
    scores = ops("Add", scores, bias) if bias else scores
    mixed = ops("MatMul", ops("Softmax", scores, axis=-1), parts["value"])
    joined = ops("Transpose", mixed, perm=[0, 2, 1, 3])
    flat = ops("Reshape", joined, ops.numbers(0, 0, width))
    return ops.linear(flat, eyes.weights, f"{path}.proj")


def _merge(ops: Ops, eyes: Eyes, layout: _Layout, x: str) -> None:
    """Neighbouring patches become one image token, back in reading order."""
    config = eyes.config
    merged = config.hidden_size * config.spatial_merge_size**2
    y = _norm(ops, eyes.weights, "merger.ln_q", x)
    y = ops("Reshape", y, ops.numbers(0, len(layout.back), merged))
    y = ops.gelu(ops.linear(y, eyes.weights, "merger.mlp.0"))
    y = ops.linear(y, eyes.weights, "merger.mlp.2")
    y = ops("Gather", y, ops.constant("back", layout.back), axis=1)
    ops("Reshape", y, ops.numbers(-1, config.out_hidden_size), name=IMAGE_ROWS)


def _norm(ops: Ops, weights: Mapping[str, Floats], path: str, x: str) -> str:
    scale = ops.constant(f"{path}.weight", weights[f"{path}.weight"])
    return ops.rms_norm(x, scale, _EPSILON, path)
