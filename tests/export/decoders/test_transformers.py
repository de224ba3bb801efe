"""Exported decoders against `transformers`: logits and greedy tokens, cached, batched, padded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_decoders import TOKENIZER
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from zotta_edge.decoder_format import Vision
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.from_torch import decoder_of
from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder, vision_path
from zotta_edge.export.decoders.sources import export_any_decoder
from zotta_edge.export.decoders.vision import Eyes, vision_graph
from zotta_edge.format import Preprocessing
from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
from zotta_edge.runtime.generate.generation import complete, steps
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Batch, Prompt
from zotta_edge.runtime.generate.questions import Question
from zotta_edge.sessions import open_session

VOCABULARY = 101
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
CONFIGURATIONS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)),
    "llama3": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SMALL,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True)),
}


def randomized(build: Any) -> Any:
    """Norm scales and biases of their own: fresh ones are all alike and would hide a mix-up."""
    torch.manual_seed(0)
    module = build().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
            elif "embed" not in name:
                parameter.mul_(4)
    return module


PROMPTS = [(5, 6, 7, 8, 9), (11, 12), (20, 21, 22, 23, 24, 25, 26), (30,)]


@pytest.fixture(scope="module", params=sorted(CONFIGURATIONS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    module = randomized(CONFIGURATIONS[request.param])
    path = tmp_path_factory.mktemp("decoder") / "fp32.onnx"
    export_decoder(decoder_of(module), path, DecoderOptions(precision="fp32"))
    return module, DecoderEngine.open(path, threads=1)


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "four"])
def test_logits_without_cache(pair: Any, prompts: Any) -> None:
    module, engine = pair
    batch = Batch.of([Prompt(ids) for ids in prompts], pad=0)
    got = engine.forward(Tokens(batch.ids, batch.mask, batch.positions)).logits
    with torch.no_grad():
        expected = module(
            torch.tensor(batch.ids),
            attention_mask=torch.tensor(batch.mask),
            position_ids=torch.tensor(batch.positions),
        ).logits.numpy()
    real = batch.mask.astype(bool)
    assert np.abs(got - expected)[real].max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "four"])
def test_logits_with_cache(pair: Any, prompts: Any) -> None:
    """Both read the prompts, then one token more with what they kept."""
    module, engine = pair
    batch = Batch.of([Prompt(ids) for ids in prompts], pad=0)
    kept = engine.forward(Tokens(batch.ids, batch.mask, batch.positions)).cache
    new = following(batch)
    got = engine.forward(new, kept).logits
    with torch.no_grad():
        cache = module(
            torch.tensor(batch.ids),
            attention_mask=torch.tensor(batch.mask),
            position_ids=torch.tensor(batch.positions),
            use_cache=True,
        ).past_key_values
        expected = module(
            torch.tensor(new.ids),
            attention_mask=torch.tensor(new.mask),
            position_ids=torch.tensor(new.positions),
            past_key_values=cache,
        ).logits.numpy()
    assert got.shape == expected.shape == (len(prompts), 1, VOCABULARY)
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


def following(batch: Batch) -> Tokens:
    """A token of its own behind each prompt."""
    ids = 40 + np.arange(len(batch))[:, None]
    mask = np.concatenate([batch.mask, np.ones_like(ids)], axis=1)
    return Tokens(ids, mask, batch.positions[..., -1:] + 1)


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "four"])
def test_greedy_tokens(pair: Any, prompts: Any) -> None:
    module, engine = pair
    batch = Batch.of([Prompt(ids) for ids in prompts], pad=0)
    got = complete(steps(engine, batch, limit=12), len(batch), ())
    with torch.no_grad():
        expected = module.generate(
            torch.tensor(batch.ids),
            attention_mask=torch.tensor(batch.mask),
            max_new_tokens=12,
            do_sample=False,
        )[:, batch.ids.shape[1] :]
    assert [list(answer.tokens) for answer in got] == expected.tolist()


def test_many_scales_see_one_prompt(pair: Any) -> None:
    """What one prompt gives under three rows of scales, it gives under each of them alone."""
    _, engine = pair
    rng = np.random.default_rng(0)
    scales = {
        name: value + 0.3 * rng.standard_normal((3, *value.shape[1:]), dtype=np.float32)
        for name, value in engine.info.affines.items()
    }
    ids = np.array([PROMPTS[0]])
    tokens = Tokens(ids, np.ones_like(ids), np.arange(ids.shape[1])[None])
    together = engine.forward(tokens, scales=scales).logits
    for row in range(3):
        own = {name: value[row : row + 1] for name, value in scales.items()}
        alone = engine.forward(tokens, scales=own).logits
        assert np.allclose(together[row], alone[0], atol=1e-4)
        others = together[(row + 1) % 3]
        assert np.abs(alone[0] - others).max() > 1e-2


IMAGE, START = 90, 91
CHAT = (  # as Qwen2.5-VL's, in short
    "{% for message in messages %}w5 {% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %} w6{% endfor %}"
)


def seeing() -> Any:
    text = SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                        "mrope_section": [2, 3, 3]}}  # fmt: skip
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
        "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
        "out_hidden_size": 64, "in_channels": 3, "temporal_patch_size": 2,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        vision_start_token_id=START,
        vision_end_token_id=92,
        video_token_id=93,
        tie_word_embeddings=False,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def patches_of(image: np.ndarray[Any, Any], patch: int = 4, merge: int = 2) -> Any:
    """As the image processor of transformers lays a still image out."""
    channels, height, width = image.shape
    film = np.stack([image, image])  # [2, C, H, W]
    rows, columns = height // patch, width // patch
    parts = film.reshape(
        1, 2, channels, rows // merge, merge, patch, columns // merge, merge, patch
    ).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return torch.tensor(parts.reshape(rows * columns, -1)), torch.tensor([[1, rows, columns]])


@dataclass(frozen=True)
class Sight:
    """A model that sees, its exported files, and four prompts about four images."""

    module: Any
    engine: DecoderEngine
    path: Path
    images: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]  # of all images, as the vision file gives them

    def batch(self, count: int, dark: bool = False) -> Batch:
        vision = self.engine.info.vision
        assert vision is not None
        seen = (START, *(IMAGE,) * vision.tokens, 92)
        prompts = [(5, 6, *seen, 7, 8), (*seen, 9), (11, 12, 13, *seen, 14), (15, *seen)]
        parts = np.split(self.rows * (not dark), len(self.images))
        pairs = zip(prompts[:count], parts, strict=False)
        return Batch.of([Prompt(ids, part) for ids, part in pairs], 0, vision, 3)

    def pixels(self, count: int) -> dict[str, Any]:
        """Images as transformers takes them."""
        laid = [patches_of(image) for image in self.images[:count]]
        values, grids = (torch.cat(parts) for parts in zip(*laid, strict=True))
        return {"pixel_values": values, "image_grid_thw": grids}


@pytest.fixture(scope="module")
def sight(tmp_path_factory: pytest.TempPathFactory) -> Sight:
    module = randomized(seeing)
    height, width = 24, 40  # windows at the edges are not full
    eyes = Eyes.of(module, height, width)
    pixels = Preprocessing(height, width, (0.5,) * 3, (0.5,) * 3)
    vision = Vision(IMAGE, *eyes.places, pixels)
    path = tmp_path_factory.mktemp("vlm") / "vlm.onnx"
    options = DecoderOptions(precision="fp32")
    export_decoder(decoder_of(module), path, options, (vision_graph(eyes), vision))
    images = np.random.default_rng(0).standard_normal((4, 3, height, width), dtype=np.float32)
    (rows,) = open_session(vision_path(path)).run(None, {"image": images})
    return Sight(module, DecoderEngine.open(path, threads=1), path, images, rows)


def test_vision_tower(sight: Sight) -> None:
    pixels = sight.pixels(4)
    with torch.no_grad():
        expected = sight.module.model.visual(pixels["pixel_values"], pixels["image_grid_thw"])
    wanted = expected.pooler_output.numpy()
    assert np.abs(sight.rows - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("count", [1, 4])
def test_seeing_logits_without_and_with_cache(sight: Sight, count: int) -> None:
    """Positions are left to transformers in the first pass: ours must be the same."""
    batch = sight.batch(count)
    first = sight.engine.forward(Tokens(batch.ids, batch.mask, batch.positions, batch.image_rows))
    new = following(batch)
    second = sight.engine.forward(new, first.cache).logits
    ids = torch.tensor(batch.ids)
    with torch.no_grad():
        expected = sight.module(
            ids,
            attention_mask=torch.tensor(batch.mask),
            mm_token_type_ids=(ids == IMAGE).int(),
            use_cache=True,
            **sight.pixels(count),
        )
        more = sight.module(
            torch.tensor(new.ids),
            attention_mask=torch.tensor(new.mask),
            position_ids=torch.tensor(new.positions),
            past_key_values=expected.past_key_values,
        ).logits.numpy()
    wanted, real = expected.logits.numpy(), batch.mask.astype(bool)
    assert np.abs(first.logits - wanted)[real].max() < 1e-4 * np.abs(wanted).max()
    assert np.abs(second - more).max() < 1e-4 * np.abs(more).max()


@pytest.mark.parametrize("count", [1, 4])
def test_seeing_greedy_tokens(sight: Sight, count: int) -> None:
    batch = sight.batch(count)
    got = complete(steps(sight.engine, batch, limit=8), count, ())
    ids = torch.tensor(batch.ids)
    with torch.no_grad():
        answer = sight.module.generate(
            ids,
            attention_mask=torch.tensor(batch.mask),
            mm_token_type_ids=(ids == IMAGE).int(),
            max_new_tokens=8,
            do_sample=False,
            **sight.pixels(count),
        )[:, ids.shape[1] :]
    assert [list(each.tokens) for each in got] == answer.tolist()
    blind = complete(steps(sight.engine, sight.batch(count, dark=True), limit=8), count, ())
    assert blind != got


def test_a_folder_that_sees_is_shown_images(sight: Sight, tmp_path: Path) -> None:
    """The chat template says where an image stands; the answer follows from what is shown."""
    sight.module.save_pretrained(tmp_path / "folder")
    names = {IMAGE: "<|image_pad|>", START: "<|vision_start|>", 92: "<|vision_end|>"}
    words = {names.get(place, f"w{place}"): place for place in range(VOCABULARY)}
    added = [
        {"id": place, "content": name, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for place, name in names.items()
    ]  # fmt: skip
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    tokenizer = TOKENIZER | {"added_tokens": added, "model": model}
    (tmp_path / "folder" / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT}
    (tmp_path / "folder" / "tokenizer_config.json").write_text(json.dumps(settings))
    path = tmp_path / "vlm.onnx"
    export_any_decoder(str(tmp_path / "folder"), path, DecoderOptions("fp32"), (24, 40))
    seeing = AdaptiveDecoder.load(path, threads=1)
    picture = np.random.default_rng(0).integers(0, 255, (30, 30, 3), dtype=np.uint8)
    prompt = seeing.prompt(Question("w7 w8", picture))
    tokens = sight.engine.info.vision.tokens if sight.engine.info.vision else 0
    assert prompt.ids == (5, START, *(IMAGE,) * tokens, 92, 7, 8, 6)
    assert prompt.image_rows is not None
    assert len(prompt.image_rows) == tokens
    assert seeing.prompt(Question("w7 w8")).ids == (5, 7, 8, 6)  # nothing stands for an image
    folder = str(tmp_path / "folder")
    vision_path(tmp_path / "blocked.onnx").mkdir()
    with pytest.raises(ZottaError, match="it is a folder"):
        export_any_decoder(folder, tmp_path / "blocked.onnx", DecoderOptions("fp32"), (24, 40))
    assert not (tmp_path / "blocked.onnx").exists()
    with pytest.raises(ZottaError, match="multiples of 8"):
        export_any_decoder(str(tmp_path / "folder"), path, DecoderOptions("fp32"), (23, 40))
    with pytest.raises(ZottaError, match="expected uint8 images"):
        seeing.prompt(Question("w7", np.zeros((3, 23, 40), np.float32)))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder as `save_pretrained` writes it."""
    randomized(CONFIGURATIONS["qwen2"]).save_pretrained(tmp_path / "folder")
    return tmp_path / "folder"


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": None},
        {"num_hidden_layers": 10**9},
        {"hidden_size": -1},
        {"hidden_size": 10**9},
        {"model_type": []},
        {"max_window_layers": "x"},
        {"model_type": "another", "auto_map": {"AutoConfig": "theirs.Config"}},
    ],
    ids=str,
)
def test_configurations_of_nonsense_are_one_line(written: Path, change: dict[str, Any]) -> None:
    file = written / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ZottaError, match="that transformers can load|expected 1 to 1000") as said:
        export_any_decoder(str(written), written / "x.onnx", DecoderOptions("fp32"))
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_files_nested_too_deep_are_one_line(written: Path, name: str) -> None:
    (written / name).write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ZottaError, match="that transformers can load"):
        export_any_decoder(str(written), written / "x.onnx", DecoderOptions("fp32"))
