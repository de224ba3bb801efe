"""Questions about pictures, the model that answers them, its training and its files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from zotta_edge.models import embedded, export_vlm
from zotta_edge.models import train_vlm as training
from zotta_edge.models.picture_questions import KINDS, LEVELS, Level, Question, questions
from zotta_edge.models.train_digits import Digits, digits
from zotta_edge.models.train_vlm import Recipe, as_input, prompt, right, tokenizer, train
from zotta_edge.models.vlm import VisionLanguageModel
from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.questions import Question as Asked

WEIGHTS = Path(__file__).parents[2] / "benchmarks" / "weights" / "digits_vlm.safetensors"


def _asked(count: int, level: Level = "trained", seed: int = 0) -> list[Question]:
    return questions(embedded.digits(2000), embedded.labels(2000), count, seed, level)


@pytest.fixture(scope="module")
def model() -> VisionLanguageModel:
    return export_vlm.load(WEIGHTS)


def test_answers_follow_from_what_is_shown() -> None:
    for question in _asked(300):
        shown = [digit for digit in question.shown if digit is not None]
        assert 1 <= len(shown) <= 3
        if question.text == "add the digits.":
            assert question.answer == str(sum(shown))
        if question.text == "count the even digits.":
            assert question.answer == str(sum(digit % 2 == 0 for digit in shown))
        if question.text == "read the digits from right to left.":
            assert question.answer == "".join(map(str, shown[::-1]))
        if question.text == "which digit is second?":
            assert question.answer == (str(shown[1]) if len(shown) > 1 else "none")


def test_harder_questions_are_none_of_training() -> None:
    texts = {level: {question.text for question in _asked(2000, level)} for level in LEVELS}
    assert not texts["new"] & texts["trained"]
    assert texts["longer"] <= texts["trained"]
    assert all(None not in question.shown for question in _asked(100, "longer"))
    assert {question.kind for question in _asked(5)} == set(KINDS)


def test_the_same_seed_asks_the_same() -> None:
    for one, other in zip(_asked(20), _asked(20), strict=True):
        np.testing.assert_array_equal(one.picture, other.picture)
        assert (one.text, one.answer) == (other.text, other.answer)
    assert [each.text for each in _asked(20)] != [each.text for each in _asked(20, seed=1)]


def test_training_and_test_share_no_digit() -> None:
    train_digits, _ = digits()
    held_out = {image.tobytes() for image in embedded.digits(2000)}
    shared = sum(image.tobytes() in held_out for image in train_digits.images)
    assert shared <= 1  # two people have written the same 8 x 8 pixels


def test_words_are_tokens_and_digits_are_single() -> None:
    words = tokenizer()
    text = prompt("what is the sum of the odd digits?") + "17"
    assert words.decode(words.encode(text).ids) == text
    assert words.encode(text).tokens[-2:] == ["1", "7"]
    assert len(words.encode(text).ids) == 12
    assert words.decode(words.encode("Größe 12?").ids) == "Größe 12?"  # whatever it is asked


def test_an_interrupted_training_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Digits(embedded.digits(50), embedded.labels(50))
    recipe = Recipe(reading=12, answering=12, batch=4, save_every=4, asking=6)
    torch.set_num_threads(1)
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole = train(data, tokenizer(), recipe, tmp_path / "whole")

    def stopping(*args: object) -> list[Question]:
        if args[3] == 9:  # in the middle of the second stage, after its step 8 was saved
            raise KeyboardInterrupt
        return questions(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(training, "questions", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(data, tokenizer(), recipe, tmp_path / "parts")
    parts = train(data, tokenizer(), recipe, tmp_path / "parts")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name


def test_the_exported_file_is_the_module(model: VisionLanguageModel, tmp_path: Path) -> None:
    """Logits of pictures and words, in fp32."""
    export_vlm.export(model, tmp_path / "vlm.onnx", "fp32")
    decoder = AdaptiveDecoder.load(tmp_path / "vlm.onnx", threads=1)
    for question in _asked(8):
        (asked,) = [decoder.prompt(Asked(question.text, question.picture))]
        batch = decoder.batch([asked])
        tokens = Tokens(batch.ids, batch.mask, batch.positions, batch.image_rows)
        found = DecoderEngine.open(tmp_path / "vlm.onnx", 1).forward(tokens).logits[0]
        words = torch.tensor([tokenizer().encode(prompt(question.text)).ids])
        with torch.no_grad():
            wanted = model(as_input([question.picture]), words)[0].numpy()
        np.testing.assert_allclose(found[-len(wanted) :], wanted, atol=2e-4)


def test_the_embedded_files_answer_as_the_module_does(model: VisionLanguageModel) -> None:
    files = [embedded.VLM, embedded.VLM.with_suffix(".vision.onnx")]
    assert sum(file.stat().st_size for file in files) < 5e6
    asked = _asked(200, seed=3)
    decoder = AdaptiveDecoder.load(embedded.VLM, threads=1)
    replies = decoder.answer([Asked(one.text, one.picture) for one in asked])
    found = np.array([a.text == one.answer for a, one in zip(replies, asked, strict=True)])
    wanted = right(model, tokenizer(), asked)
    assert found.mean() > 0.9
    assert (found == wanted).mean() > 0.97
