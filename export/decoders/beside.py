"""What a config.json or genai_config.json beside a decoder's ONNX file tells: sizes and tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zotta_edge.errors import ZottaError
from zotta_edge.files import read_text

_SIZES = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers"),
    *("head_dim", "max_position_embeddings", "vocab_size"),
)
_GENAI = {  # where onnxruntime-genai keeps them, in "decoder" of "model" or in "model"
    "head_size": "head_dim",
    "num_key_value_heads": "num_key_value_heads",
    "num_hidden_layers": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "pad_token_id",
}


def settings_beside(folder: Path) -> dict[str, Any]:
    """Sizes and tokens, by the names that config.json has for them."""
    found: dict[str, Any] = {}
    for name in ("config.json", "genai_config.json"):
        file = folder / name
        if file.exists():
            content = _object(file)
            found |= _checked(content if name == "config.json" else _genai(content), file)
    if "head_dim" not in found and {"hidden_size", "num_attention_heads"} <= set(found):
        found["head_dim"] = found["hidden_size"] // found["num_attention_heads"]
    return found


def stop_tokens(folder: Path) -> tuple[tuple[int, ...], int]:
    """Stop tokens and padding, from the same files."""
    settings = settings_beside(folder)
    return tuple(settings.get("eos_token_id", ())), settings.get("pad_token_id", 0)


def _object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ZottaError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ZottaError(f"{file} holds no JSON object")
    return content


def _genai(content: Mapping[str, Any]) -> dict[str, Any]:
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    decoder = model.get("decoder")
    both = model | (decoder if isinstance(decoder, dict) else {})
    return {ours: both[theirs] for theirs, ours in _GENAI.items() if theirs in both}


def _checked(content: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """What is known of it; null says nothing, as in the files of transformers."""
    found: dict[str, Any] = {}
    for name, least in {**dict.fromkeys(_SIZES, 1), "pad_token_id": 0}.items():
        if content.get(name) is not None:
            found[name] = _whole(content[name], least, name, file)
    if (stop := content.get("eos_token_id")) is not None:
        stops = stop if isinstance(stop, list) else [stop]
        found["eos_token_id"] = [_whole(each, 0, "eos_token_id", file) for each in stops]
    return found


def _whole(value: Any, least: int, name: str, file: Path) -> int:
    if type(value) is not int or value < least:
        raise ZottaError(f"{file}: {name} is {value!r}: expected a whole number from {least} on")
    return value
