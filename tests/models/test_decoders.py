"""Importers of llama2.c and GGUF, on files written here and on published ones."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from published import smollm2, stories
from reference_decoder import forward, token_losses
from tiny_decoders import WORDS, tiny_decoder

from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder
from zotta_edge.models.decoder import Decoder
from zotta_edge.models.gguf_file import read_gguf
from zotta_edge.models.llama2c import parse_llama2c, parse_tokenizer, read_llama2c
from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
from zotta_edge.runtime.generate.methods.zotta import token_loss
from zotta_edge.runtime.generate.tokenizer import Tokenizer

STORY = (
    "Once upon a time, there was a little dog named Max. Max loved to play with his red ball in "
    "the park. One day, the ball rolled under a big bush and Max could not find it. He was very "
    "sad. A kind girl saw him and helped him look. They found the ball and Max was happy again."
)
FINANCE = (
    "The central bank raised its deposit rate by a quarter of a point on Thursday, citing core "
    "inflation that remains above target. Yields on ten-year bonds rose, and shares of regional "
    "lenders fell as analysts lowered their estimates of net interest margins for the year."
)
PARTS = (
    "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
    "post_attention_layernorm mlp.gate_proj mlp.down_proj mlp.up_proj"
)
GGUF_PARTS = "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_down ffn_up"


def neighbours(weight: np.ndarray, heads: int) -> np.ndarray:  # type: ignore[type-arg]
    """The reverse of `halves`: rotary pairs side by side, as these files hold them."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def in_file_order(decoder: Decoder) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    turned = {"q_proj": decoder.sizes.heads, "k_proj": decoder.sizes.kv_heads}
    return {
        name: neighbours(value, turned[name.split(".")[-2]])
        if name.split(".")[-2] in turned
        else value
        for name, value in decoder.weights.items()
    }


def written(decoder: Decoder) -> bytes:
    """llama2.c's first format, with a head of its own."""
    sizes, weights = decoder.sizes, in_file_order(decoder)
    header = struct.pack(
        "<7i", sizes.hidden, 64, sizes.layers, sizes.heads, sizes.kv_heads,
        -sizes.vocabulary, sizes.context,
    )  # fmt: skip
    arrays = [weights["embed_tokens.weight"]]
    for part in PARTS.split():
        arrays += [weights[f"layers.{layer}.{part}.weight"] for layer in range(sizes.layers)]
    angles = np.zeros((2, sizes.context, sizes.head_dim // 2), np.float32)
    arrays += [weights["norm.weight"], angles, weights["lm_head.weight"]]
    return header + b"".join(array.astype("<f4").tobytes() for array in arrays)


def test_llama2c_comes_back(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    (tmp_path / "model.bin").write_bytes(written(decoder))
    read = read_llama2c(tmp_path / "model.bin")
    assert read.sizes == decoder.sizes
    ids = [3, 4, 5, 6]
    assert np.allclose(forward(read, ids), forward(decoder, ids), atol=1e-5)


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<7i", *[10**9] * 7)])
def test_llama2c_that_is_none(content: bytes) -> None:
    with pytest.raises(ZottaError, match="not a file of llama2.c"):
        parse_llama2c(content, "x.bin")


def test_llama2c_cut_short() -> None:
    with pytest.raises(ZottaError, match="cut short"):
        parse_llama2c(written(tiny_decoder())[:-100], "x.bin")


def test_gguf_comes_back(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    decoder = tiny_decoder()
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    sizes = decoder.sizes
    writer.add_block_count(sizes.layers)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3] + [1] * (len(WORDS) - 2))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    inner = dict(zip(PARTS.split(), GGUF_PARTS.split(), strict=True))
    for name, value in in_file_order(decoder).items():
        path = name.removesuffix(".weight")
        layer = path.split(".", 2)
        own = f"blk.{layer[1]}.{inner[layer[2]]}" if path.startswith("layers") else names[path]
        writer.add_tensor(f"{own}.weight", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = read_gguf(tmp_path / "tiny.gguf")
    assert read.prompting.template == "<{prompt}>"
    assert read.prompting.stop == (1,)
    ids = [3, 4, 5, 6]
    assert np.allclose(forward(read, ids), forward(decoder, ids), atol=1e-4)
    (tmp_path / "half.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes()[:200])
    with pytest.raises(ZottaError, match="not a GGUF file"):
        read_gguf(tmp_path / "half.gguf")


def losses(decoder: Decoder, folder: Path, precision: str, ids: list[int]) -> float:
    path = folder / f"{precision}.onnx"
    export_decoder(decoder, path, DecoderOptions(precision))
    engine = DecoderEngine.open(path, threads=2)
    tokens = np.array([ids])
    logits = engine.forward(Tokens(tokens, np.ones_like(tokens), np.arange(len(ids))[None])).logits
    return float(token_loss(logits[:, :-1], tokens[0, 1:]).mean())


def compare(decoder: Decoder, folder: Path, text: str) -> float:
    """fp32 within 1e-3 of NumPy, INT8 within 2 % of that."""
    assert decoder.tokenizer is not None
    ids = list(Tokenizer(decoder.tokenizer, decoder.prompting.begin).encode(text))
    expected = float(token_losses(decoder, ids).mean())
    assert losses(decoder, folder, "fp32", ids) == pytest.approx(expected, abs=1e-3)
    assert losses(decoder, folder, "int8", ids) == pytest.approx(expected, rel=0.02)
    return expected


@pytest.mark.slow
def test_stories15m(tmp_path: Path) -> None:
    weights, tokens = stories()
    decoder = parse_llama2c(weights, "stories15M")
    tokenizer = parse_tokenizer(tokens, decoder.sizes.vocabulary)
    decoder = replace(decoder, tokenizer=tokenizer)
    assert compare(decoder, tmp_path, STORY) < 2
    assert compare(decoder, tmp_path, FINANCE) > 6
    again = Tokenizer(tokenizer)
    assert again.decode(again.encode(STORY + " Caf\u00e9 \U0001f600!")) == (
        STORY + " Caf\u00e9 \U0001f600!"
    )


@pytest.mark.slow
def test_smollm2(tmp_path: Path) -> None:
    decoder = read_gguf(smollm2())
    assert "<|im_start|>user\n{prompt}<|im_end|>" in decoder.prompting.template
    assert compare(decoder, tmp_path, STORY + " " + FINANCE) < 4
