"""Small decoders for tests, at random weights, with a tokenizer of single words."""

import json

import numpy as np

from zotta_edge.decoder_format import Prompting
from zotta_edge.models.decoder import Decoder, Rotary, Sizes

WORDS = ["<pad>", "<stop>", *"abcdefghijklmnopqrstuvwxyz"]
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {word: place for place, word in enumerate(WORDS)},
        "unk_token": "<pad>",
    },
}


def tiny_decoder(seed: int = 0, layers: int = 3) -> Decoder:
    """Random weights of Llama's shape; its answers depend on every scale."""
    rng = np.random.default_rng(seed)
    sizes = Sizes(len(WORDS), 32, layers, heads=4, kv_heads=2, head_dim=8, context=64, epsilon=1e-5)

    def matrix(out: int, width: int) -> np.ndarray:  # type: ignore[type-arg]
        return (rng.standard_normal((out, width)) * 1.5 / width**0.5).astype(np.float32)

    def scale() -> np.ndarray:  # type: ignore[type-arg]
        return (1 + 0.2 * rng.standard_normal(sizes.hidden)).astype(np.float32)

    weights = {"norm.weight": scale()}
    weights["embed_tokens.weight"] = matrix(sizes.vocabulary, sizes.hidden) * 5
    weights["lm_head.weight"] = matrix(sizes.vocabulary, sizes.hidden) * 2
    for layer in range(layers):
        path = f"layers.{layer}"
        for name, out, width in [
            ("self_attn.q_proj", 32, 32),
            ("self_attn.k_proj", 16, 32),
            ("self_attn.v_proj", 16, 32),
            ("self_attn.o_proj", 32, 32),
            ("mlp.gate_proj", 64, 32),
            ("mlp.up_proj", 64, 32),
            ("mlp.down_proj", 32, 64),
        ]:
            weights[f"{path}.{name}.weight"] = matrix(out, width)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{path}.{name}.weight"] = scale()
    rotary = Rotary.plain(sizes.head_dim, 10000.0)
    return Decoder(f"tiny{seed}", sizes, rotary, weights, Prompting(), json.dumps(TOKENIZER))
