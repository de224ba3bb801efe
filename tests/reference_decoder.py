"""A decoder in NumPy, straight from the equations: what exported files are compared with."""

from typing import Any

import numpy as np

from zotta_edge.models.decoder import Decoder

Array = np.ndarray[Any, Any]


def token_losses(decoder: Decoder, ids: list[int]) -> Array:
    """Negative log-likelihood of every token after the first, in float64 where it adds up."""
    logits = forward(decoder, ids)[:-1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -scores[np.arange(len(ids) - 1), ids[1:]]


def forward(decoder: Decoder, ids: list[int]) -> Array:
    """Logits [tokens, vocabulary]."""
    w, sizes = decoder.weights, decoder.sizes
    x = w["embed_tokens.weight"][ids]
    for layer in range(sizes.layers):
        path = f"layers.{layer}"
        y = _norm(x, w[f"{path}.input_layernorm.weight"], sizes.epsilon)
        x = x + _attention(decoder, f"{path}.self_attn", y)
        y = _norm(x, w[f"{path}.post_attention_layernorm.weight"], sizes.epsilon)
        gate, up = (y @ w[f"{path}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{path}.mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", w["embed_tokens.weight"])
    return np.asarray(_norm(x, w["norm.weight"], sizes.epsilon) @ head.T)


def _norm(x: Array, scale: Array, epsilon: float) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * scale)


def _attention(decoder: Decoder, path: str, x: Array) -> Array:
    w, sizes, count = decoder.weights, decoder.sizes, len(x)
    heads = {}
    for name, number in (("q", sizes.heads), ("k", sizes.kv_heads), ("v", sizes.kv_heads)):
        y = x @ w[f"{path}.{name}_proj.weight"].T
        heads[name] = y.reshape(count, number, sizes.head_dim).transpose(1, 0, 2)
    angles = np.arange(count)[:, None] * decoder.rotary.frequencies
    query, key = (_turned(heads[name], angles) for name in ("q", "k"))
    groups = sizes.heads // sizes.kv_heads
    key, value = (np.repeat(each, groups, axis=0) for each in (key, heads["v"]))
    scores = query @ key.transpose(0, 2, 1) / sizes.head_dim**0.5
    scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ value
    flat = mixed.transpose(1, 0, 2).reshape(count, -1)
    return np.asarray(flat @ w[f"{path}.o_proj.weight"].T)


def _turned(x: Array, angles: Array) -> Array:
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(np.float32)
