"""Folders of transformers that are damaged: one line, and nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoders import TOKENIZER, WORDS
from transformers import LlamaConfig, LlamaForCausalLM

from zotta_edge.decoder_format import PROMPT_PLACE
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.pipeline import DecoderOptions
from zotta_edge.export.decoders.sources import export_any_decoder

WEIGHTS, CONFIG, SETTINGS = "model.safetensors", "config.json", "tokenizer_config.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(WORDS)}
    tokens = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    path = tmp_path / "llama"
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **tokens)).save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (path / SETTINGS).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


def exported(folder: Path) -> Any:
    return export_any_decoder(str(folder), folder.parent / "out.onnx", DecoderOptions("fp32"))


def changed(file: Path, **entries: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def cut_short(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:5000])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without_a_tensor, "lacks model.layers.1.mlp.up_proj.weight"),  # it would be made up
        (cut_short, "no model that transformers can load: .*header"),
        (lambda folder: changed(folder / CONFIG, hidden_size=64), "no model .* can load"),
        (lambda folder: changed(folder / CONFIG, hidden_size="x"), "no model .* 'hidden_size'"),
        (lambda folder: changed(folder / CONFIG, pad_token_id=99), "no model .* can load"),
        (lambda folder: changed(folder / CONFIG, model_type="gpt2"), "cannot export a gpt2"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "no tokenizer .* can load"),
        (lambda folder: changed(folder / SETTINGS, chat_template="{% for %}"), "no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text(large()), "has 528 tokens"),
    ],
)
def test_damage_is_one_line(folder: Path, damage: Callable[[Path], Any], said: str) -> None:
    damage(folder)
    with pytest.raises(ZottaError, match=said) as error:
        exported(folder)
    assert "\n" not in str(error.value)
    assert [file.name for file in folder.parent.iterdir()] == ["llama"]


def large() -> str:
    """A tokenizer of more words than the model has."""
    words = [*WORDS, *(f"word{n}" for n in range(500))]
    vocabulary = {word: place for place, word in enumerate(words)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"}
    return json.dumps(TOKENIZER | {"model": model})


def test_tokens_that_the_model_lacks_end_nothing(folder: Path) -> None:
    """Small models with a large one's settings are common."""
    changed(folder / CONFIG, eos_token_id=[1, 4000], pad_token_id=-1)
    changed(folder / "generation_config.json", eos_token_id=[1, 4000])
    prompting = exported(folder).prompting
    assert (prompting.template, prompting.stop, prompting.pad) == (PROMPT_PLACE, (1,), 0)


def test_precisions_of_classifiers() -> None:
    with pytest.raises(ZottaError, match="fp8 is unknown for decoders"):
        DecoderOptions("fp8")
