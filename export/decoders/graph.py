"""A decoder of Llama's and Qwen2's kind as an ONNX graph, its chosen norms' scales as inputs.

Written node by node rather than traced: one graph whatever the weights came from, with no size but
the model's own in it. The batch axis is never named in a shape, so that one prompt can meet many
rows of scales: what lies before the first chosen norm is then computed once for all of them.
"""

import re

import numpy as np
import onnx

from zotta_edge.decoder_format import (
    FIRST,
    HIDDEN,
    IDS,
    IMAGE_ROWS,
    LOGITS,
    MASK,
    POSITIONS,
    SHIFT,
    ScaleNorm,
)
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.ops import Axes, Ops
from zotta_edge.models.decoder import Decoder

POST_ATTENTION = r"post_attention_layernorm"
_MASKED = -1e9  # finite: a padded row without any key still has a softmax
_LAYER = re.compile(r"layers\.(\d+)\.")


def decoder_graph(
    decoder: Decoder, norms: str = POST_ATTENTION, image_token: int | None = None
) -> tuple[onnx.ModelProto, tuple[ScaleNorm, ...]]:
    """The fp32 graph of a decoder, and the norms whose scales are inputs.

    Parameters
    ----------
    decoder
        Sizes and weights.
    norms
        Regular expression for the names of the norms to choose; by default those behind attention.
    image_token
        Where prompts may hold images: the token that stands for a row of one.
    """
    writer = _Writer(decoder, norms, image_token)
    model = writer.write()
    if not writer.chosen:
        raise ZottaError(f"no norm of {decoder.name} matches {norms!r}: name others with --layers")
    return model, tuple(writer.chosen)


class _Writer:
    def __init__(self, decoder: Decoder, norms: str, image_token: int | None) -> None:
        self.sizes, self.rotary, self.weights = decoder.sizes, decoder.rotary, decoder.weights
        self.name, self.norms, self.image_token = decoder.name, norms, image_token
        self.ops = Ops()
        self.chosen: list[ScaleNorm] = []

    def write(self) -> onnx.ModelProto:
        ops, sizes = self.ops, self.sizes
        ids = ops.input(IDS, np.int64, ["batch", "sequence"])
        mask = ops.input(MASK, np.int64, ["batch", "total"])
        x = self._embedded(ids)
        self._angles()
        bias = self._attention_bias(ids, mask)
        for layer in range(sizes.layers):
            x = self._block(f"layers.{layer}", layer, x, bias)
        hidden = self._norm("norm", x, HIDDEN)
        ops.output(LOGITS, ["rows", "kept", sizes.vocabulary])
        ops.output(HIDDEN, ["rows", "sequence", sizes.hidden])
        self._head(hidden)
        # Caches come last: readers find `logits` first.
        cached: Axes = ["rows", sizes.kv_heads, "total", sizes.head_dim]
        for layer in range(sizes.layers):
            for part in ("key", "value"):
                ops.output(f"present.{layer}.{part}", cached)
        return ops.model(self.name)

    def _embedded(self, ids: str) -> str:
        ops = self.ops
        table = np.asarray(self.weights["embed_tokens.weight"], np.float32)
        x = ops("Gather", ops.constant("embed_tokens.weight", table), ids, name="embedded")
        return x if self.image_token is None else self._with_images(ids, x)

    def _with_images(self, ids: str, x: str) -> str:
        """The k-th image token of the batch becomes the k-th row of `image_embeds`."""
        ops = self.ops
        none = np.zeros((1, self.sizes.hidden), np.float32)
        rows = ops.overridable(IMAGE_ROWS, none, ["image_tokens", self.sizes.hidden])
        is_image = ops("Equal", ids, ops.numbers(self.image_token or 0))
        flags = ops("Cast", is_image, to=onnx.TensorProto.INT64)
        flat = ops("Reshape", flags, ops.numbers(-1))
        zero = ops.constant("zero", np.array(0, np.int64))
        counted = ops("Sub", ops("CumSum", flat, zero), ops.numbers(1))
        places = ops("Reshape", ops("Max", counted, ops.numbers(0)), ops("Shape", ids))
        # Text between and behind images points at a row, too, which `Where` leaves out.
        chosen = ops("Where", is_image, places, ops.numbers(0))
        seen = ops("Gather", rows, chosen)
        return ops("Where", ops("Unsqueeze", is_image, ops.numbers(-1)), seen, x)

    def _angles(self) -> None:
        """`cos` and `sin` of every token's angles, [batch, 1, sequence, head_dim / 2]."""
        ops, rotary = self.ops, self.rotary
        if rotary.axes:
            positions = ops.input(POSITIONS, np.int64, [3, "batch", "sequence"])
            last = ops("Transpose", positions, perm=[1, 2, 0])
            numbers = ops("Gather", last, ops.numbers(*rotary.axes), axis=2)
        else:
            positions = ops.input(POSITIONS, np.int64, ["batch", "sequence"])
            numbers = ops("Unsqueeze", positions, ops.numbers(-1))
        steps = ops.constant("frequencies", rotary.frequencies)
        angles = ops("Mul", ops("Cast", numbers, to=onnx.TensorProto.FLOAT), steps)
        angles = ops("Unsqueeze", angles, ops.numbers(1))
        for name in ("Cos", "Sin"):
            ops("Mul", ops(name, angles), ops.scalar(rotary.scaling), name=name.lower())

    def _attention_bias(self, ids: str, mask: str) -> str:
        """0 where a token may look, else very low: [batch, 1, groups * sequence, total]."""
        ops = self.ops
        total, length = (ops("Shape", name, start=1, end=2) for name in (mask, ids))
        zero, one = (ops.constant(f"step{n}", np.array(n, np.int64)) for n in (0, 1))
        columns = ops("Range", zero, ops("Squeeze", total), one)
        rows = ops("Range", ops("Squeeze", ops("Sub", total, length)), ops("Squeeze", total), one)
        later = ops("Greater", columns, ops("Unsqueeze", rows, ops.numbers(-1)))
        absent = ops("Equal", ops("Unsqueeze", mask, ops.numbers(1, 2)), ops.numbers(0))
        bias = ops("Where", ops("Or", later, absent), ops.scalar(_MASKED), ops.scalar(0.0))
        groups = self.sizes.heads // self.sizes.kv_heads
        return ops("Tile", bias, ops.numbers(1, 1, groups, 1)) if groups > 1 else bias

    def _block(self, path: str, layer: int, x: str, bias: str) -> str:
        ops = self.ops
        attended = self._attention(
            f"{path}.self_attn", layer, self._norm(f"{path}.input_layernorm", x), bias
        )
        x = ops("Add", x, attended, name=f"{path}.attended")
        y = self._norm(f"{path}.post_attention_layernorm", x)
        gate = ops.silu(ops.linear(y, self.weights, f"{path}.mlp.gate_proj"))
        product = ops("Mul", gate, ops.linear(y, self.weights, f"{path}.mlp.up_proj"))
        return ops("Add", x, ops.linear(product, self.weights, f"{path}.mlp.down_proj"))

    def _attention(self, path: str, layer: int, x: str, bias: str) -> str:
        """Grouped: all queries that share a key are one matrix, [batch, kv, groups * seq, dim]."""
        ops, sizes = self.ops, self.sizes
        query = ops.rotate(self._heads(x, f"{path}.q_proj", sizes.heads), sizes.head_dim)
        key = ops.rotate(self._heads(x, f"{path}.k_proj", sizes.kv_heads), sizes.head_dim)
        value = self._heads(x, f"{path}.v_proj", sizes.kv_heads)
        key, value = self._cached(layer, "key", key), self._cached(layer, "value", value)
        grouped = ops("Reshape", query, ops.numbers(0, sizes.kv_heads, -1, sizes.head_dim))
        scaled = ops("Mul", grouped, ops.scalar(sizes.head_dim**-0.5))
        scores = ops("MatMul", scaled, ops("Transpose", key, perm=[0, 1, 3, 2]))
        weights = ops("Softmax", ops("Add", scores, bias), axis=-1)
        mixed = ops("MatMul", weights, value)
        split = ops("Reshape", mixed, ops.numbers(0, sizes.heads, -1, sizes.head_dim))
        joined = ops("Transpose", split, perm=[0, 2, 1, 3])
        flat = ops("Reshape", joined, ops.numbers(0, 0, sizes.heads * sizes.head_dim))
        return ops.linear(flat, self.weights, f"{path}.o_proj")

    def _heads(self, x: str, path: str, heads: int) -> str:
        ops = self.ops
        y = ops.linear(x, self.weights, path)
        split = ops("Reshape", y, ops.numbers(0, 0, heads, self.sizes.head_dim))
        return ops("Transpose", split, perm=[0, 2, 1, 3])

    def _cached(self, layer: int, part: str, new: str) -> str:
        axes: Axes = [f"batch{layer}", self.sizes.kv_heads, "past", self.sizes.head_dim]
        past = self.ops.input(f"past_key_values.{layer}.{part}", np.float32, axes)
        return self.ops("Concat", past, new, name=f"present.{layer}.{part}", axis=2)

    def _norm(self, path: str, x: str, name: str = "") -> str:
        ops, channels = self.ops, self.sizes.hidden
        scale = np.asarray(self.weights[f"{path}.weight"], np.float32)
        epsilon = self.sizes.epsilon
        layer = _LAYER.match(path)
        if layer is None or not re.search(self.norms, path):
            return ops.rms_norm(x, ops.constant(f"{path}.weight", scale), epsilon, name or path)
        norm = ScaleNorm(path, channels, int(layer[1]), "input_layernorm" in path)
        self.chosen.append(norm)
        ones = ops.constant("ones", np.ones(channels, np.float32))
        hat = ops.rms_norm(x, ones, epsilon, f"{path}.hat")
        axes: Axes = [f"n.{path}", 1, channels]
        source = ops.overridable(norm.scale, scale.reshape(1, 1, -1), axes)
        return ops("Mul", hat, source, name=name or path)

    def _head(self, hidden: str) -> None:
        ops, channels = self.ops, self.sizes.hidden
        first = ops.overridable(FIRST, np.zeros(1, np.int64), [1])
        end = ops.constant("end", np.array([np.iinfo(np.int64).max], np.int64))
        kept = ops("Slice", hidden, first, end, ops.numbers(1))
        zero = np.zeros((1, 1, channels), np.float32)
        shift = ops.overridable(SHIFT, zero, ["n.shift", 1, channels])
        moved = ops("Add", kept, shift)
        if "lm_head.weight" in self.weights:
            ops.linear(moved, self.weights, "lm_head", LOGITS)
        else:
            turned = ops("Transpose", "embed_tokens.weight", perm=[1, 0], name="lm_head.weight")
            ops("MatMul", moved, turned, name=LOGITS)
