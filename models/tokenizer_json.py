"""A tokenizer.json from the vocabularies that weight files of other kinds hold."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zotta_edge.errors import ZottaError

SPACE = "\u2581"  # what SentencePiece writes for a space
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Mapping[str, Sequence[Mapping[str, Any]]] = {  # how words are cut before merging
    "gpt-2": [_BYTES],
    "default": [_BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": _QWEN}, "behavior": "Isolated", "invert": False},
        _BYTES | {"use_regex": False},
    ],
}


def byte_level(
    tokens: Sequence[str], merges: Sequence[str], special: Sequence[int], split: str
) -> str:
    """GPT-2's kind: bytes as letters, merged in the order of `merges`."""
    if split not in _SPLITS:
        raise ZottaError(
            f"unknown tokenizer {split!r}: {', '.join(_SPLITS)} are known; export the model's "
            "folder of transformers instead"
        )
    before = {"type": "Sequence", "pretokenizers": _SPLITS[split]}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    return _written(tokens, pairs, special, None, before, _BYTES, {})


def sentencepiece(tokens: Sequence[str], scores: Sequence[float], special: Sequence[int]) -> str:
    """Llama's kind: the pair whose product has the highest score is merged first."""
    places = {token: place for place, token in reversed(list(enumerate(tokens)))}
    pairs = sorted(_pairs(tokens, places, set(special)), key=lambda pair: -scores[pair[2]])
    normalizer = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        ],
    }
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    more = {"byte_fallback": True, "fuse_unk": True, "unk_token": tokens[0]}
    merges = [(left, right) for left, right, _ in pairs]
    return _written(tokens, merges, special, normalizer, None, decoder, more)


def _pairs(
    tokens: Sequence[str], places: Mapping[str, int], special: set[int]
) -> Iterator[tuple[str, str, int]]:
    for place, token in enumerate(tokens):
        if place in special or places[token] != place:
            continue
        for cut in range(1, len(token)):
            if token[:cut] in places and token[cut:] in places:
                yield token[:cut], token[cut:], place


def _written(
    tokens: Sequence[str],
    merges: Sequence[tuple[str, ...]],
    special: Sequence[int],
    normalizer: Any,
    before: Any,
    decoder: Any,
    more: Mapping[str, Any],
) -> str:
    vocabulary = {token: place for place, token in reversed(list(enumerate(tokens)))}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": place, "content": tokens[place], "special": True} | flags for place in special]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "fuse_unk": False} | dict(more)
    whole = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": before,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
