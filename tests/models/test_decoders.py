"""Importers of llama2.c and GGUF, on files written here and on published ones."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

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
ODD = struct.pack("<7i", 32, 64, 3, 32, 2, 28, 64)  # 32 heads of one number, which cannot turn
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


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<7i", *[10**9] * 7), ODD])
def test_llama2c_that_is_none(content: bytes) -> None:
    with pytest.raises(ZottaError, match="not a file of llama2.c"):
        parse_llama2c(content, "x.bin")


def test_llama2c_cut_short() -> None:
    with pytest.raises(ZottaError, match="cut short"):
        parse_llama2c(written(tiny_decoder())[:-100], "x.bin")


def changed(**changes: Any) -> Decoder:
    decoder = tiny_decoder()
    sizes = {name: changes.pop(name) for name in list(changes) if hasattr(decoder.sizes, name)}
    weights = {**decoder.weights, **changes}
    left = {name: value for name, value in weights.items() if value is not None}
    return replace(decoder, sizes=replace(decoder.sizes, **sizes), weights=left)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers.1.mlp.up_proj.weight": None}, "tiny0 lacks layers.1.mlp.up_proj.weight"),
        ({"layers": 4}, "tiny0 lacks layers.3"),
        ({"layers": 2}, "tiny0 has layers.2"),
        ({"layers.0.self_attn.q_norm.weight": np.ones(8)}, "q_norm.weight, which its sizes do not"),
        ({"kv_heads": 4}, r"k_proj.weight of tiny0 has the shape \[16, 32\], expected \[32, 32\]"),
        ({"lm_head.weight": np.ones((9, 32))}, r"the shape \[9, 32\], expected \[28, 32\]"),
        ({"norm.weight": np.full(32, np.nan)}, "norm.weight of tiny0 is not finite"),
        ({"heads": 3}, "no decoder has the sizes"),
        ({"context": 1}, "no decoder has the sizes"),
        ({"epsilon": float("nan")}, "no decoder has the sizes"),
        ({"layers.0.mlp.up_proj.bias": np.ones(3)}, "cannot be run by onnxruntime"),
    ],
)
def test_weights_that_their_sizes_do_not_tell_of(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """They were written, and failed on the device, or ended in a KeyError."""
    with pytest.raises(ZottaError, match=said):
        export_decoder(changed(**changes), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def write_gguf(
    decoder: Decoder, path: Path, kind: str = "F32", architecture: str = "llama"
) -> None:
    """As llama.cpp does, the products' matrices in that kind."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, architecture)
    sizes = decoder.sizes
    writer.add_block_count(sizes.layers)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*WORDS[:-1], "ab"])
    writer.add_token_types([3, 3] + [1] * (len(WORDS) - 2))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    inner = dict(zip(PARTS.split(), GGUF_PARTS.split(), strict=True))
    weights = in_file_order(decoder) if architecture == "llama" else decoder.weights
    for name, value in weights.items():
        part, suffix = name.rsplit(".", 1)
        layer = part.split(".", 2)
        own = names.get(part, part)
        if part.startswith("layers"):
            own = f"blk.{layer[1]}.{inner[layer[2]]}"
        stored = gguf.GGMLQuantizationType[kind if "_proj.weight" in name else "F32"]
        data = gguf.quants.quantize(np.ascontiguousarray(value), stored)
        writer.add_tensor(f"{own}.{suffix}", data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_comes_back(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    write_gguf(decoder, tmp_path / "tiny.gguf")
    read = read_gguf(tmp_path / "tiny.gguf")
    assert read.prompting.template == "<{prompt}>"
    assert read.prompting.stop == (1,)
    assert not read.four_bits
    ids = [3, 4, 5, 6]
    assert np.allclose(forward(read, ids), forward(decoder, ids), atol=1e-4)
    (tmp_path / "half.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes()[:200])
    with pytest.raises(ZottaError, match="not a GGUF file"):
        read_gguf(tmp_path / "half.gguf")


LIST, LISTED = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9), struct.Struct("<IQ")


@pytest.mark.parametrize(
    "fields",
    [
        (1, LIST + LISTED.pack(4, 2**60)),  # was read for ever, into 5 GB in a minute
        (1, LIST + LISTED.pack(9, 1) * 5000),
        (2, (struct.pack("<Q", 1) + b"a" + struct.pack("<II", 4, 1)) * 2),
        (2**63, b""),
    ],
    ids=["endless", "deep", "twice", "many"],
)
def test_damaged_ggufs_are_one_line(tmp_path: Path, fields: tuple[int, bytes]) -> None:
    count, content = fields
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, count)
    (tmp_path / "x.gguf").write_bytes(head + content + bytes(64))
    with pytest.raises(ZottaError, match="not a GGUF file, or is damaged") as said:
        read_gguf(tmp_path / "x.gguf")
    assert "\n" not in str(said.value)


def test_gguf_that_scales_rotary_positions(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.ones(4, np.float32)}
    write_gguf(changed(**factors), tmp_path / "tiny.gguf")
    with pytest.raises(ZottaError, match="scales its rotary positions, as Llama 3"):
        read_gguf(tmp_path / "tiny.gguf")


def test_gguf_of_qwen2_comes_back(tmp_path: Path) -> None:
    """Its rotary pairs are halves already, and its projections have biases."""
    biases = {f"layers.{n}.self_attn.q_proj.bias": np.arange(32.0) for n in range(3)}
    decoder = changed(**biases)
    write_gguf(decoder, tmp_path / "tiny.gguf", architecture="qwen2")
    read = read_gguf(tmp_path / "tiny.gguf")
    assert set(read.weights) == set(decoder.weights)
    assert all(np.array_equal(read.weights[name], each) for name, each in decoder.weights.items())
    export_decoder(read, tmp_path / "qwen2.onnx")


@pytest.mark.parametrize(
    ("part", "other", "said"),
    [(b"{{", b"{%", "chat template"), (b"llama", b"ll\xffma", "damaged")],
)
def test_gguf_whose_texts_are_damaged(tmp_path: Path, part: bytes, other: bytes, said: str) -> None:
    write_gguf(tiny_decoder(), tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    assert part in content
    (tmp_path / "tiny.gguf").write_bytes(content.replace(part, other))
    with pytest.raises(ZottaError, match=said):
        read_gguf(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_four_bits_of_gguf_stay(tmp_path: Path, kind: str) -> None:
    """The codes are GGUF's own, and the file's products are those with the numbers they mean."""
    write_gguf(tiny_decoder(), tmp_path / "tiny.gguf", kind)
    read = read_gguf(tmp_path / "tiny.gguf")
    assert set(read.four_bits) == {name for name in read.weights if "_proj" in name}
    for name, stored in read.four_bits.items():
        assert np.array_equal(stored.values(), read.weights[name])
    found = {kind: logits_of(read, tmp_path, kind) for kind in ("fp32", "int4", "int8")}
    assert found["int4"] == pytest.approx(
        found["fp32"], abs=0.02 * float(np.abs(found["fp32"]).max())
    )
    sizes = {kind: (tmp_path / f"{kind}.onnx").stat().st_size for kind in found}
    assert sizes["int4"] < sizes["int8"] < sizes["fp32"]


def logits_of(decoder: Decoder, folder: Path, precision: Any) -> Any:
    path = folder / f"{precision}.onnx"
    export_decoder(decoder, path, DecoderOptions(precision))
    engine = DecoderEngine.open(path, threads=1)
    tokens = np.array([[3, 4, 5, 6]])
    return engine.forward(Tokens(tokens, np.ones_like(tokens), np.arange(4)[None])).logits


def test_no_four_bits_to_keep(tmp_path: Path) -> None:
    with pytest.raises(ZottaError, match="has no 4-bit weights to keep"):
        export_decoder(tiny_decoder(), tmp_path / "x.onnx", DecoderOptions("int4"))
    assert not list(tmp_path.iterdir())


def losses(decoder: Decoder, folder: Path, precision: Any, ids: list[int]) -> float:
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
    expected = compare(decoder, tmp_path, text := STORY + " " + FINANCE)
    assert expected < 4
    ids = list(Tokenizer(decoder.tokenizer or "", decoder.prompting.begin).encode(text))
    assert losses(decoder, tmp_path, "int4", ids) == pytest.approx(expected, rel=0.02)
