"""llama2.c's files: seven numbers, then float32 weights; tokens and their scores beside them."""

import struct
from pathlib import Path

import numpy as np

from zotta_edge.decoder_format import Prompting
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats
from zotta_edge.models.decoder import Decoder, Rotary, Sizes, block_shapes, halves
from zotta_edge.models.tokenizer_json import SPACE, sentencepiece

_HEADER = struct.Struct("<7i")
_BEGIN, _END = 1, 2  # Llama's tokens; a story ends with either
_FIRST_BYTE = 3
_EPSILON, _BASE = 1e-5, 10000.0  # fixed in llama2.c
_LARGEST = 1 << 24


def read_llama2c(path: str | Path, tokenizer: str | Path | None = None) -> Decoder:
    """Weights of llama2.c's first format (`model.bin`), and `tokenizer.bin` if it is given."""
    path = Path(path)
    content = path.read_bytes()
    decoder = parse_llama2c(content, path.stem)
    if tokenizer is None:
        return decoder
    text = parse_tokenizer(Path(tokenizer).read_bytes(), decoder.sizes.vocabulary)
    return Decoder(
        *(decoder.name, decoder.sizes, decoder.rotary, decoder.weights, decoder.prompting, text)
    )


def parse_llama2c(content: bytes, name: str) -> Decoder:
    """`read_llama2c` of bytes; what follows the weights is left alone."""
    if len(content) < _HEADER.size:
        raise ZottaError(f"{name} is not a file of llama2.c: it is too short")
    dim, width, layers, heads, kv_heads, vocabulary, context = _HEADER.unpack_from(content)
    numbers = (dim, width, layers, heads, kv_heads, abs(vocabulary), context)
    if not all(0 < n < _LARGEST for n in numbers) or dim % (2 * heads) or heads % kv_heads:
        raise ZottaError(f"{name} is not a file of llama2.c: its sizes are {numbers}")
    sizes = Sizes(abs(vocabulary), dim, layers, heads, kv_heads, dim // heads, context, _EPSILON)
    weights = _weights(memoryview(content)[_HEADER.size :], sizes, width, vocabulary < 0, name)
    prompting = Prompting(stop=(_BEGIN, _END), pad=_BEGIN, begin=(_BEGIN,))
    return Decoder(name, sizes, Rotary.plain(sizes.head_dim, _BASE), weights, prompting)


def _weights(
    content: memoryview, sizes: Sizes, width: int, own_head: bool, name: str
) -> dict[str, Floats]:
    dim, layers = sizes.hidden, sizes.layers
    place = 0

    def take(*shape: int) -> Floats:
        nonlocal place
        count = int(np.prod(shape))
        if place + 4 * count > len(content):
            raise ZottaError(f"{name} is cut short: copy it again")
        values = np.frombuffer(content, "<f4", count, place).astype(np.float32).reshape(shape)
        place += 4 * count
        return values

    weights = {"embed_tokens.weight": take(sizes.vocabulary, dim)}
    for part, shape in block_shapes(sizes, width).items():
        for layer, value in enumerate(take(layers, *shape)):
            weights[f"layers.{layer}.{part}.weight"] = value
    weights["norm.weight"] = take(dim)
    take(2, sizes.context, sizes.head_dim // 2)  # cosines and sines
    if own_head:
        weights["lm_head.weight"] = take(sizes.vocabulary, dim)
    for layer in range(layers):
        for part, count in (("q_proj", sizes.heads), ("k_proj", sizes.kv_heads)):
            key = f"layers.{layer}.self_attn.{part}.weight"
            weights[key] = halves(weights[key], count)
    return weights


def parse_tokenizer(content: bytes, vocabulary: int) -> str:
    """tokenizer.bin as a tokenizer.json."""
    tokens, scores, place = [], [], 4  # the first number is the longest token's length
    try:
        for _ in range(vocabulary):
            score, length = struct.unpack_from("<fi", content, place)
            token = content[place + 8 : place + 8 + length].decode()
            tokens.append(token.replace(" ", SPACE))
            scores.append(score)
            place += 8 + length
    except (struct.error, UnicodeDecodeError) as error:
        raise ZottaError(f"the tokenizer of llama2.c is damaged: {error}") from error
    if tokens[_FIRST_BYTE] in ("\0", "<0x00>"):  # some files hold the bytes themselves
        tokens[_FIRST_BYTE : _FIRST_BYTE + 256] = [f"<0x{byte:02X}>" for byte in range(256)]
    special = [0, _BEGIN, _END]
    for number, name in zip(special, ("<unk>", "<s>", "</s>"), strict=True):
        tokens[number] = name
    return sentencepiece(tokens, scores, special)
