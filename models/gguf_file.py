"""GGUF files of Llama's and Qwen2's kind; the `gguf` package reads them."""

from pathlib import Path
from typing import Any

import numpy as np

from zotta_edge.decoder_format import PROMPT_PLACE, Prompting
from zotta_edge.errors import ZottaError, one_line
from zotta_edge.format import Floats
from zotta_edge.models.decoder import Decoder, Rotary, Sizes, halves_order
from zotta_edge.models.four_bits import FourBits
from zotta_edge.models.tokenizer_json import SPACE, byte_level, sentencepiece

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_PAIRS = {"llama": True, "qwen2": False}  # whether rotary pairs are neighbours in the file
_CONTROL, _USER = 3, 4  # token types that no text is merged into
_BASE = 10000.0
_MARK = "\x00prompt\x00"
_DAMAGED = (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError)


def read_gguf(path: str | Path) -> Decoder:
    """Sizes, weights (whatever they are quantized to), tokenizer and chat template."""
    reader = _reader(Path(path))
    try:
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except ValueError as error:  # a text that is none
        raise ZottaError(f"{path} is damaged, or lacks {error}: copy it again") from error
    kind = fields.get("general.architecture")
    if kind not in _PAIRS:
        raise ZottaError(f"{path} holds a {kind} model: {', '.join(_PAIRS)} are known")
    if fields.get(f"{kind}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in {
        tensor.name for tensor in reader.tensors
    }:
        raise ZottaError(
            f"{path} scales its rotary positions, as Llama 3 does: export the model's folder of "
            "transformers instead"
        )
    try:
        sizes, base = _sizes(fields, kind), float(fields.get(f"{kind}.rope.freq_base", _BASE))
        weights, four_bits = _weights(reader, sizes, _PAIRS[kind])
        prompting, tokenizer = _prompting(fields), _tokenizer(fields)
    except (KeyError, ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raise ZottaError(f"{path} is damaged, or lacks {error}: copy it again") from error
    rotary = Rotary.plain(sizes.head_dim, base)
    return Decoder(Path(path).stem, sizes, rotary, weights, prompting, tokenizer, four_bits)


def _reader(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ZottaError("GGUF files need the gguf package: `pip install gguf`") from error

    class Bounded(GGUFReader):
        """Behind the file's end gguf reads nothing, as often as a list claims to be long."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it ends early")
            return super()._get(offset, dtype, count, *order, **named)

    try:
        return Bounded(path)
    except _DAMAGED as error:
        detail = one_line(error)
        raise ZottaError(f"{path} is not a GGUF file, or is damaged: {detail}") from error


def _sizes(fields: dict[str, Any], kind: str) -> Sizes:
    def number(name: str) -> int:
        return int(fields[f"{kind}.{name}"])

    hidden, heads = number("embedding_length"), number("attention.head_count")
    return Sizes(
        vocabulary=len(fields["tokenizer.ggml.tokens"]),
        hidden=hidden,
        layers=number("block_count"),
        heads=heads,
        kv_heads=int(fields.get(f"{kind}.attention.head_count_kv", heads)),
        head_dim=int(fields.get(f"{kind}.attention.key_length", hidden // heads)),
        context=number("context_length"),
        epsilon=float(fields[f"{kind}.attention.layer_norm_rms_epsilon"]),
    )


def _weights(
    reader: Any, sizes: Sizes, pairs: bool
) -> tuple[dict[str, Floats], dict[str, FourBits]]:
    """All weights as numbers, and those that come in 4 bits as such, too."""
    from gguf.quants import dequantize

    weights: dict[str, Floats] = {}
    four_bits: dict[str, FourBits] = {}
    for tensor in reader.tensors:
        name, values = _name(tensor.name), dequantize(tensor.data, tensor.tensor_type)
        heads = _heads(tensor.name, sizes) if pairs else None
        order = halves_order(len(values), heads) if heads else np.arange(len(values))
        weights[name] = np.asarray(values, np.float32)[order]
        if (stored := FourBits.of_gguf(tensor.data, tensor.tensor_type.name)) is not None:
            four_bits[name] = stored.rows(order)
    return weights, four_bits


def _name(stored: str) -> str:
    """What `transformers` calls a tensor."""
    first, *rest = stored.split(".")
    if first != "blk":
        return f"{_OUTSIDE[first]}.{rest[0]}"
    layer, part, suffix = rest
    return f"layers.{layer}.{_NAMES[part]}.{suffix}"


def _heads(stored: str, sizes: Sizes) -> int | None:
    """Of a projection that rotary positions turn."""
    turned = {"attn_q": sizes.heads, "attn_k": sizes.kv_heads}
    return next((heads for part, heads in turned.items() if f".{part}." in stored), None)


def _tokenizer(fields: dict[str, Any]) -> str:
    tokens = fields["tokenizer.ggml.tokens"]
    types = fields["tokenizer.ggml.token_type"]
    special = [place for place, kind in enumerate(types) if kind in (_CONTROL, _USER)]
    model = fields["tokenizer.ggml.model"]
    if model == "gpt2":
        split = fields.get("tokenizer.ggml.pre", "default")
        return byte_level(tokens, fields["tokenizer.ggml.merges"], special, split)
    if model == "llama":
        spaced = [token.replace(" ", SPACE) for token in tokens]
        return sentencepiece(spaced, fields["tokenizer.ggml.scores"], special)
    raise ZottaError(f"unknown tokenizer {model!r}: gpt2 and llama are known")


def _prompting(fields: dict[str, Any]) -> Prompting:
    end = int(fields["tokenizer.ggml.eos_token_id"])
    begin = fields.get("tokenizer.ggml.bos_token_id")
    adds = begin is not None and fields.get("tokenizer.ggml.add_bos_token", False)
    tokens = fields["tokenizer.ggml.tokens"]
    stop = {end, *(tokens.index(each) for each in ("<|endoftext|>",) if each in tokens)}
    pad = int(fields.get("tokenizer.ggml.padding_token_id", end))
    template = _template(fields.get("tokenizer.chat_template"), tokens, begin, end)
    return Prompting(template, tuple(sorted(stop)), pad, (int(begin or 0),) if adds else ())


def _template(text: str | None, tokens: list[str], begin: int | None, end: int) -> str:
    """What the chat template puts around one question; the question alone where there is none."""
    if not text:
        return PROMPT_PLACE
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ZottaError("chat templates need the jinja2 package: `pip install jinja2`") from error
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        rendered = environment.from_string(text).render(
            messages=[{"role": "user", "content": _MARK}],
            add_generation_prompt=True,
            bos_token="" if begin is None else tokens[begin],
            eos_token=tokens[end],
        )
    except (TemplateError, TypeError) as error:
        raise ZottaError(f"the chat template cannot be read: {error}") from error
    return rendered.replace(_MARK, PROMPT_PLACE) if rendered.count(_MARK) == 1 else PROMPT_PLACE
