"""Prompts that the model expects are answered by the source, whatever was learned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import tiny_decoder

from zotta_edge.decoder_format import Prompting
from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder
from zotta_edge.runtime.generate.engine import Tokens
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.questions import Question
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.generate.surprise import surprise

ADAPTING = ("zotta", "perplexity", "slot")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("decoder") / "tiny.onnx"
    decoder = replace(tiny_decoder(), prompting=Prompting("x y {prompt} z"))
    export_decoder(decoder, file, DecoderOptions(precision="fp32"))
    return file


def load(path: Path, method: str = "none", **settings: Any) -> AdaptiveDecoder:
    fast: dict[str, Any] = {"max_tokens": 6, "learning_rate": 0.3, "slot_rate": 0.05}
    return AdaptiveDecoder.load(path, GenerationSettings(**fast | settings), method, threads=1)


@pytest.fixture(scope="module")
def expected(path: Path) -> Prompt:
    """What the model itself goes on with, most probable first: it cannot be surprised."""
    (answer,) = load(path, max_tokens=12).complete([Prompt((5,))])
    return Prompt((5, *answer.tokens))


SURPRISING = Prompt((3, 9, 4, 17, 8, 20, 6, 11))


@pytest.mark.parametrize("method", ADAPTING)
def test_learning_from_others_changes_no_expected_prompt(
    path: Path, expected: Prompt, method: str
) -> None:
    (plain,) = load(path).complete([expected])
    model = load(path, method)
    for _ in range(4):
        model.complete([SURPRISING])
    assert model.status()["expected"] == 0
    assert model.complete([expected]) == [plain]
    assert model.status()["expected"] == 1
    both = load(path, method).complete([expected, SURPRISING, expected])
    assert both[0].tokens == both[2].tokens == plain.tokens


@pytest.mark.parametrize("method", ADAPTING)
def test_expected_prompts_cost_no_pass(path: Path, expected: Prompt, method: str) -> None:
    plain, model = load(path), load(path, method)
    plain.complete([expected])
    model.complete([expected])
    assert model.engine.passes == plain.engine.passes
    everything = load(path, method, surprise=0.0)
    everything.complete([expected])
    assert everything.status()["expected"] == 0
    assert everything.engine.tokens > plain.engine.tokens or method == "slot"


def test_a_model_s_own_text_is_no_surprise(path: Path) -> None:
    """Sampled from the model itself, surprise has mean 0 and standard deviation 1."""
    model = load(path, temperature=1.0, max_tokens=40)
    answers = model.complete([Prompt((5,))] * 200)
    batch = model.batch([Prompt((5, *answer.tokens)) for answer in answers])
    seen = model.engine.forward(Tokens(batch.ids, batch.mask, batch.positions))
    found = [surprise(*each) for each in zip(seen.logits, batch.ids, batch.words, strict=True)]
    assert abs(np.mean(found)) < 0.25
    assert 0.8 < np.std(found) < 1.2


def test_the_template_is_not_the_question(path: Path) -> None:
    model = load(path)
    prompt = model.prompt(Question("a b c"))
    assert prompt.own == (2, 5)
    batch = model.batch([prompt, Prompt((3, 4, 5, 6, 7, 8, 9))])
    assert np.flatnonzero(batch.words[0]).tolist() == [3, 4, 5]  # behind one token of padding
    assert np.flatnonzero(batch.words[1]).tolist() == [1, 2, 3, 4, 5, 6]
    assert model.prompt(Question("x y z")).own == (2, 5)


@pytest.mark.parametrize("method", ["perplexity", "slot"])
def test_the_template_is_not_learned_from(path: Path, method: str) -> None:
    """A question of no words moves nothing, although its template could be fitted."""
    model = load(path, method, surprise=0.0)
    move = model.move([model.prompt(Question(""))])
    assert move.scales is None
    assert move.shift is None or not move.shift.any()


def test_a_model_that_knows_nothing_expects_everything() -> None:
    ids = np.arange(64)
    logits = np.zeros((64, 49152), np.float32)
    assert abs(surprise(logits, ids, np.ones(64, bool))) < 0.5
