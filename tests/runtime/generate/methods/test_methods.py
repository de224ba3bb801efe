"""Ways to adapt a decoder: their equations, their state, and what they must never do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import tiny_decoder

from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder
from zotta_edge.runtime.generate.engine import DecoderEngine, Pass, Tokens
from zotta_edge.runtime.generate.generation import Completion
from zotta_edge.runtime.generate.guard import AnswerWatch, fault
from zotta_edge.runtime.generate.head import head_weights
from zotta_edge.runtime.generate.methods.registry import METHODS, find
from zotta_edge.runtime.generate.methods.slot import prompt_gradient
from zotta_edge.runtime.generate.methods.zotta import token_loss
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.settings import GenerationSettings

PROMPTS = [Prompt(tuple(ids)) for ids in ([3, 4, 5], [6, 7, 8, 9, 10], [11, 2], [12, 13, 14, 15])]


@pytest.fixture(scope="module", params=["fp32", "int8"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("decoder") / "tiny.onnx"
    export_decoder(tiny_decoder(), file, DecoderOptions(precision=request.param))
    return file


def load(path: Path, method: str, **settings: Any) -> AdaptiveDecoder:
    given = GenerationSettings(**({"max_tokens": 6, "learning_rate": 0.05} | settings))
    return AdaptiveDecoder.load(path, given, method, threads=1)


@pytest.mark.parametrize("method", METHODS)
def test_states_continue_bit_for_bit(path: Path, tmp_path: Path, method: str) -> None:
    model = load(path, method)
    first = [model.complete([prompt]) for prompt in PROMPTS[:2]]
    model.save_state(tmp_path / "half.state")
    rest = [model.complete([prompt]) for prompt in PROMPTS[2:]]
    other = load(path, method)
    other.load_state(tmp_path / "half.state")
    assert [other.complete([prompt]) for prompt in PROMPTS[2:]] == rest
    model.reset()
    assert [model.complete([prompt]) for prompt in PROMPTS[:2]] == first


@pytest.mark.parametrize("method", METHODS)
def test_batches_and_streams(path: Path, method: str) -> None:
    model = load(path, method)
    answers = model.complete(PROMPTS)
    assert all(1 <= len(answer.tokens) <= 6 for answer in answers)
    model.reset()
    text = "".join(model.stream_tokens(PROMPTS[0]))
    model.reset()
    (answer,) = model.complete(PROMPTS[:1])
    assert text == model.tokenizer.decode(answer.tokens)


def test_reading_changes_nothing(path: Path) -> None:
    model = load(path, "zotta")
    model.complete(PROMPTS[:2])
    before = model.status()["distance"]
    model.complete(PROMPTS, adapt=False)
    assert model.status()["distance"] == before > 0


def test_the_gradient_of_slot_is_that_of_the_prompt_s_loss(path: Path) -> None:
    engine = DecoderEngine.open(path, threads=1)
    weights = head_weights(engine).astype(np.float64)
    ids = np.array([[3, 4, 5, 9, 7]])
    tokens = Tokens(ids, np.ones_like(ids), np.arange(5)[None])
    logits = engine.forward(tokens).logits[0].astype(np.float64)
    shift = 0.1 * np.random.default_rng(0).standard_normal(len(weights))
    loss, gradient = prompt_gradient(logits[:-1], ids[0, 1:], weights, shift)
    for place in range(0, len(shift), 7):
        step = np.zeros_like(shift)
        step[place] = 1e-4
        above, _ = prompt_gradient(logits[:-1], ids[0, 1:], weights, shift + step)
        below, _ = prompt_gradient(logits[:-1], ids[0, 1:], weights, shift - step)
        assert gradient[place] == pytest.approx((above - below) / 2e-4, abs=1e-4)
    moved = engine.forward(tokens, shift=shift.astype(np.float32)[None, None]).logits
    assert loss == pytest.approx(float(token_loss(moved[:, :-1], ids[0, 1:]).mean()), abs=0.02)


def test_slot_lowers_the_prompt_s_loss(path: Path) -> None:
    model = load(path, "slot", slot_rate=0.05)
    move = model.move(PROMPTS[1:2])
    ids = np.array([PROMPTS[1].ids])
    tokens = Tokens(ids, np.ones_like(ids), np.arange(ids.shape[1])[None])
    before, after = (
        float(
            token_loss(model.engine.forward(tokens, shift=shift).logits[:, :-1], ids[0, 1:]).mean()
        )
        for shift in (None, move.shift)
    )
    assert after < before - 0.01


def test_perplexity_lowers_the_prompt_s_loss(path: Path) -> None:
    model = load(path, "perplexity", pairs=30, learning_rate=0.3, max_step=0.1, max_distance=0.5)
    ids = np.array([PROMPTS[1].ids])
    tokens = Tokens(ids, np.ones_like(ids), np.arange(ids.shape[1])[None])
    losses = []
    for _ in range(12):
        move = model.move(PROMPTS[1:2])
        logits = model.engine.forward(tokens, scales=move.scales).logits
        losses.append(float(token_loss(logits[:, :-1], ids[0, 1:]).mean()))
    assert losses[-1] < losses[0] - 0.05


def test_entropy_falls_and_rollback_keeps_it_from_rising(path: Path) -> None:
    model = load(path, "zotta", pairs=30, learning_rate=0.3, max_step=0.1, max_distance=0.5)
    (plain,) = load(path, "none").complete(PROMPTS[:1])
    entropies = [model.complete(PROMPTS[:1])[0].entropy for _ in range(10)]
    assert entropies[-1] < plain.entropy


def test_a_large_step_is_held_near_the_source(path: Path) -> None:
    model = load(path, "perplexity", learning_rate=1e6, max_step=0.02, max_distance=0.03)
    for prompt in PROMPTS:
        model.complete([prompt])
    assert 0.01 < model.status()["distance"] <= 0.0301


def test_little_memory_gives_the_same_answer(path: Path) -> None:
    large = load(path, "perplexity")
    small = load(path, "perplexity", kilobytes=1)  # one row at a time
    for prompt in PROMPTS:
        assert small.complete([prompt])[0].tokens == large.complete([prompt])[0].tokens
    assert small.engine.passes > large.engine.passes


class Counting(DecoderEngine):
    largest = 0  # bytes of logits that a pass returned

    def forward(self, *given: Any, **named: Any) -> Pass:
        result = super().forward(*given, **named)
        self.largest = max(self.largest, result.logits.nbytes)
        return result


@pytest.mark.parametrize("method", ["perplexity", "slot"])
def test_long_prompts_take_no_more_memory(path: Path, method: str) -> None:
    """The end of a prompt is learned from, as much of it as memory allows."""
    engine = Counting.open(path, threads=1)
    assert isinstance(engine, Counting)
    settings = GenerationSettings(kilobytes=1, surprise=0.0, max_tokens=3)
    model = AdaptiveDecoder(engine, settings, method)
    prompts = [Prompt(tuple(n % 20 + 4 for n in range(length))) for length in (50, 30)]
    assert all(answer.tokens for answer in model.complete(prompts))
    assert 0 < engine.largest <= 1024
    move = model.move(prompts)
    assert (move.shift if method == "slot" else move.scales) is not None


def test_an_unknown_method() -> None:
    with pytest.raises(ZottaError, match="there are none, zotta"):
        find("magic")


def test_faults_and_the_watch() -> None:
    good = Completion((1, 2, 3), (1.0, 1.0, 1.0), True)
    assert fault(good) == ""
    assert fault(Completion((), (0.5,), True)) == "empty"
    assert fault(Completion((7, 8) * 9, (0.1,) * 18, False)) == "going in circles"
    watch = AnswerWatch()
    assert not any(watch.observe(good) for _ in range(40))
    sure = Completion((1,), (0.01,), True)
    reasons = [watch.observe(sure) for _ in range(60)]
    assert any("entropy fell" in reason for reason in reasons)
    endless = AnswerWatch()
    assert not any(endless.observe(good) for _ in range(20))
    reasons = [endless.observe(Completion((1, 2, 3), (1.0,) * 3, False)) for _ in range(40)]
    assert any("do not end" in reason for reason in reasons)
