"""The library's entry: texts in, texts out, streamed, in batches, with states."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import tiny_decoder

from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.questions import Question
from zotta_edge.runtime.generate.settings import GenerationSettings


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("decoder") / "tiny.onnx"
    export_decoder(tiny_decoder(), file, DecoderOptions(precision="fp32"))
    return file


def load(path: Path, **settings: Any) -> AdaptiveDecoder:
    return AdaptiveDecoder.load(path, GenerationSettings(**settings), threads=1)


def test_a_stream_is_the_answer(path: Path) -> None:
    model = load(path, max_tokens=9)
    (reply,) = model.answer([Question("a b c")])
    assert 1 <= len(reply.tokens) <= 9
    assert "".join(model.stream(Question("a b c"))) == reply.text


def test_a_batch_answers_like_single_prompts(path: Path) -> None:
    model = load(path, max_tokens=6)
    questions = [Question("a b c d"), Question("e"), Question("f a")]
    together = model.answer(questions)
    assert [reply.text for reply in together] == [model.answer([q])[0].text for q in questions]


def test_sampling_is_seeded_and_samples(path: Path) -> None:
    texts = [load(path, temperature=2.0, seed=seed).answer([Question("a")])[0].text
             for seed in (0, 0, 1)]  # fmt: skip
    assert texts[0] == texts[1] != texts[2]
    assert load(path, temperature=2.0, top_k=1).answer([Question("a")]) == load(path).answer(
        [Question("a")]
    )
    nearly_greedy = load(path, temperature=2.0, top_p=0.0).answer([Question("a")])
    assert nearly_greedy == load(path).answer([Question("a")])


def test_stop_tokens_end_an_answer(path: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from zotta_edge.decoder_format import Prompting

    (reply,) = load(path, max_tokens=8).answer([Question("a b")])
    assert not reply.stopped
    place = next(n for n, token in enumerate(reply.tokens) if token not in reply.tokens[:n] and n)
    stopping = replace(tiny_decoder(), prompting=Prompting(stop=(reply.tokens[place],)))
    export_decoder(stopping, tmp_path / "stops.onnx", DecoderOptions(precision="fp32"))
    (short,) = load(tmp_path / "stops.onnx", max_tokens=8).answer([Question("a b")])
    assert short.stopped
    assert short.tokens == reply.tokens[:place]


def test_an_answer_that_adaptation_empties_is_the_source_s(path: Path, tmp_path: Path) -> None:
    """slot, fitted hard on a prompt of nothing but the stop token, would say that at once."""
    from dataclasses import replace

    from zotta_edge.decoder_format import Prompting

    spoken = load(path).tokenizer.encode("zz b c d e")
    plain = {token: load(path, max_tokens=5).complete([Prompt((token,) * 6)])[0].tokens
             for token in spoken}  # fmt: skip
    stop = next(token for token, said in plain.items() if said[0] != token)
    stopping = replace(tiny_decoder(), prompting=Prompting(stop=(stop,)))
    export_decoder(stopping, tmp_path / "stops.onnx", DecoderOptions(precision="fp32"))
    prompt, hard = Prompt((stop,) * 6), {"slot_rate": 3.0, "slot_steps": 50, "surprise": 0.0}
    texts = {}
    for guard in (True, False):
        settings = GenerationSettings(max_tokens=5, guard=guard, **hard)
        model = AdaptiveDecoder.load(tmp_path / "stops.onnx", settings, "slot", threads=1)
        said = model.tokenizer.decode(model.complete([prompt])[0].tokens)
        assert "".join(model.stream_tokens(prompt)) == said
        texts[guard] = said
    assert texts[True]
    assert not texts[False]


@pytest.mark.parametrize("temperature", [1e-300, 1e-40])
def test_next_to_no_temperature_is_greedy(path: Path, temperature: float) -> None:
    greedy = load(path, max_tokens=5).answer([Question("a b")])
    assert load(path, max_tokens=5, temperature=temperature).answer([Question("a b")]) == greedy
    hottest = load(path, max_tokens=5, temperature=1e300).answer([Question("a b")])
    assert hottest[0].tokens


@pytest.mark.parametrize("text", ["\ud800", "a \udcff"])
def test_half_a_character_is_no_text(path: Path, text: str) -> None:
    with pytest.raises(ZottaError, match="not UTF-8"):
        load(path).answer([Question(text)])


def test_a_question_may_hold_what_templates_do(path: Path) -> None:
    """It lost its {image}, as if the template had a place for one."""
    model = load(path)
    assert len(model.prompt(Question("a {image} {prompt} b")).ids) == 4


def test_the_context_ends_an_answer(path: Path) -> None:
    (reply,) = load(path, max_tokens=8).answer([Question("a " * 60)])
    assert len(reply.tokens) == 4


def test_bad_prompts(path: Path) -> None:
    model = load(path, max_tokens=8)
    with pytest.raises(ZottaError, match="none of the context of 64"):
        model.answer([Question("a " * 64)])
    with pytest.raises(ZottaError, match="empty"):
        model.complete([Prompt(())])
    with pytest.raises(ZottaError, match="outside the"):
        model.complete([Prompt((10**6,))])
    with pytest.raises(ZottaError, match="reads text alone"):
        model.answer([Question("a", np.zeros((8, 8, 3), np.uint8))])


def test_a_state_of_another_model_is_refused(path: Path, tmp_path: Path) -> None:
    model = load(path)
    model.answer([Question("a")])
    model.save_state(tmp_path / "a.state")
    again = load(path)
    again.load_state(tmp_path / "a.state")
    assert again.status()["prompts"] == 1
    export_decoder(tiny_decoder(seed=1), tmp_path / "other.onnx", DecoderOptions("fp32"))
    with pytest.raises(ZottaError, match="another model"):
        load(tmp_path / "other.onnx").load_state(tmp_path / "a.state")


def test_a_cache_of_another_model_is_refused(path: Path, tmp_path: Path) -> None:
    from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
    from zotta_edge.runtime.generate.generation import steps
    from zotta_edge.runtime.generate.prompts import Batch

    export_decoder(tiny_decoder(layers=2), tmp_path / "two.onnx", DecoderOptions("fp32"))
    batch = Batch.of([Prompt((3, 4, 5))], pad=0)
    tokens = Tokens(batch.ids, batch.mask, batch.positions)
    engine = DecoderEngine.open(path, threads=1)
    own, other = engine.forward(tokens), DecoderEngine.open(tmp_path / "two.onnx").forward(tokens)
    assert len(list(steps(engine, batch, 3, started=own))) == 3
    with pytest.raises(ZottaError, match="the cache belongs to another model"):
        list(steps(engine, batch, 3, started=other))
