"""A decoder's weights, wherever they came from: what every importer returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.decoder_format import Prompting
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.models.four_bits import FourBits

Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder of Llama's and Qwen2's kind."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    epsilon: float  # of its RMSNorms


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: an angle is a position times a frequency."""

    frequencies: Floats  # [head_dim / 2]
    scaling: float = 1.0  # of cosine and sine
    axes: tuple[int, ...] = ()  # Qwen2.5-VL: which of three positions each frequency reads

    @classmethod
    def plain(cls, head_dim: int, base: float) -> "Rotary":
        """The original frequencies.

        >>> Rotary.plain(4, 10000.0).frequencies
        array([1.  , 0.01], dtype=float32)
        """
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        return cls((1.0 / base**exponents).astype(np.float32))


@dataclass(frozen=True)
class Decoder:
    """Weights by the names that `transformers` gives them, without its prefix `model.`

    `embed_tokens.weight`, `layers.{i}.input_layernorm.weight`, `layers.{i}.self_attn.q_proj.weight`
    (and `.bias` where there is one; k_proj, v_proj, o_proj), `layers.{i}.post_attention_layernorm
    .weight`, `layers.{i}.mlp.gate_proj.weight` (up_proj, down_proj), `norm.weight`, and
    `lm_head.weight` unless it is the embedding.
    """

    name: str
    sizes: Sizes
    rotary: Rotary
    weights: Weights
    prompting: Prompting = field(default_factory=Prompting)
    tokenizer: str | None = None  # the text of a tokenizer.json
    four_bits: Mapping[str, FourBits] = field(default_factory=dict)  # weights that came so


def check_decoder(decoder: Decoder) -> None:
    """Refuse weights that are not what the sizes say: missing, of another shape, unknown."""
    name, sizes = decoder.name, decoder.sizes
    numbers = (sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.layers, sizes.context - 1)
    fits = min(numbers) > 0 and not (sizes.heads % sizes.kv_heads or sizes.head_dim % 2)
    if not (fits and 0 <= sizes.epsilon < 1):
        raise ZottaError(f"{name} is damaged: no decoder has the sizes {vars(sizes)}")
    wanted = _shapes(decoder)
    for key, shape in wanted.items():
        _check_weight(decoder, key, shape)
    biases = {key.removesuffix("weight") + "bias" for key in wanted}
    if unknown := sorted(set(decoder.weights) - set(wanted) - biases):
        raise ZottaError(f"{name} has {unknown[0]}, which its sizes do not tell of")


def _check_weight(decoder: Decoder, key: str, shape: tuple[int, ...]) -> None:
    value = decoder.weights.get(key)
    if value is None:
        raise ZottaError(f"{decoder.name} lacks {key}: copy it again")
    if value.shape != shape:
        raise ZottaError(
            f"{key} of {decoder.name} has the shape {list(value.shape)}, expected {list(shape)}"
        )
    if not np.isfinite(value).all():
        raise ZottaError(f"{key} of {decoder.name} is not finite: copy it again")


def _shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    sizes, weights = decoder.sizes, decoder.weights
    block = block_shapes(sizes, len(weights.get("layers.0.mlp.gate_proj.weight", ())))
    blocks = product(range(sizes.layers), block.items())
    table, last = (sizes.vocabulary, sizes.hidden), (sizes.hidden,)
    shapes = {"embed_tokens.weight": table, "norm.weight": last}
    shapes |= {f"layers.{layer}.{part}.weight": shape for layer, (part, shape) in blocks}
    return shapes | ({"lm_head.weight": table} if "lm_head.weight" in weights else {})


def block_shapes(sizes: Sizes, inner: int) -> dict[str, tuple[int, ...]]:
    """The weights of a block, in the order of llama2.c's files; `inner` is its SwiGLU's width."""
    hidden, queries = sizes.hidden, sizes.heads * sizes.head_dim
    keys = sizes.kv_heads * sizes.head_dim
    return {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "mlp.up_proj": (inner, hidden),
    }


def halves(weight: Floats, heads: int) -> Floats:
    """Rows of a projection whose rotary pairs are neighbours, as pairs of halves of a head.

    >>> halves(np.arange(4, dtype=np.float32)[:, None], heads=1).ravel()
    array([0., 2., 1., 3.], dtype=float32)
    """
    return np.ascontiguousarray(weight[halves_order(len(weight), heads)])


def halves_order(rows: int, heads: int) -> NDArray[np.int64]:
    """Which row comes where in `halves`."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
