"""Train the embedded vision-language model on questions about pictures of digits.

    python -m zotta_edge.models.train_vlm --output FOLDER
    python -m zotta_edge.models.export_vlm FOLDER/digits_vlm.safetensors

The digits are those that the embedded classifiers train on, so all others are new to it. Pictures
are clean in training: what noise does to them is left to adaptation. An interrupted run goes on
where it last saved (`*.ckpt` in the folder); the same seed gives the same model.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F

from zotta_edge.files import replacing
from zotta_edge.models.picture_questions import KINDS, LEVELS, PLACES, Question, questions
from zotta_edge.models.train_digits import Digits, digits
from zotta_edge.models.vlm import Tower, VisionLanguageModel, VLMShape
from zotta_edge.progress import Progress

END, IMAGE = "<|end|>", "<|image|>"  # ends an answer; stands for a patch of the picture
END_TOKEN, IMAGE_TOKEN = 0, 1  # their numbers; the first fills the rest of a row, too
_IGNORED = -100  # cross-entropy's mark for what is not part of an answer
_MERGES = 400  # at most; every word of the questions becomes a token of its own


@dataclass(frozen=True)
class Recipe:
    reading: int = 800  # steps in which the tower learns to read digits
    answering: int = 1800  # steps of the whole model after that
    asking: int = 1300  # of these, the step from which on the questions' own words count, too
    share: float = 0.1  # how much, against those of the answers
    batch: int = 96
    rate: float = 2e-3  # AdamW's, with one cosine cycle
    decay: float = 0.05
    save_every: int = 100
    seed: int = 0


@cache
def tokenizer() -> Tokenizer:
    """Byte-level BPE as Qwen's: words with the space before them, digits one by one."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|\n| ?[a-z]+|."), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + _MERGES,
        special_tokens=[END, IMAGE],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_texts(), trainer)
    return made


def _texts() -> Iterator[str]:
    blank = Digits(np.zeros((10, 8, 8), np.uint8), np.arange(10))
    for level in LEVELS:
        for question in questions(blank.images, blank.labels, 2000, 0, level):
            yield prompt(question.text)
            yield question.answer


def prompt(text: str) -> str:
    """What stands between the picture and the answer."""
    return f"{text}\n"


def as_input(pictures: Sequence[np.ndarray]) -> Tensor:
    """What the device will make of pictures, [N, 1, 16, 64] from -1 to 1."""
    return torch.from_numpy(np.stack(pictures)[:, None].astype(np.float32) / 127.5 - 1)


@dataclass(frozen=True)
class Rows:
    pictures: Tensor  # float32 [batch, 1, 16, 64]
    tokens: Tensor  # int64 [batch, length]: question, answer, end
    targets: Tensor  # the token after each, where it belongs to the answer
    asking: Tensor  # the token after each, where it belongs to the question


def rows(asked: Sequence[Question], words: Tokenizer) -> Rows:
    """A batch to train on."""
    asking = [words.encode(prompt(question.text)).ids for question in asked]
    answers = [[*words.encode(question.answer).ids, END_TOKEN] for question in asked]
    length = max(len(one) + len(other) for one, other in zip(asking, answers, strict=True))
    tokens = torch.zeros(len(asked), length, dtype=torch.int64)
    targets, asking_next = torch.full_like(tokens, _IGNORED), torch.full_like(tokens, _IGNORED)
    for row, (ask, answer) in enumerate(zip(asking, answers, strict=True)):
        end = len(ask) + len(answer)
        tokens[row, :end] = torch.tensor(ask + answer)
        targets[row, len(ask) - 1 : end - 1] = torch.tensor(answer)
        asking_next[row, : len(ask) - 1] = torch.tensor(ask[1:])
    return Rows(as_input([question.picture for question in asked]), tokens, targets, asking_next)


class Reader(nn.Module):
    """A tower with a head that names the digit at each place, 10 for none."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower, self.head = tower, nn.Linear(tower.proj.out_features, 1 + 10)

    def forward(self, pictures: Tensor) -> Tensor:
        grid = self.tower(pictures).unflatten(1, (-1, PLACES, 2))  # rows, places, columns of each
        return self.head(grid.mean((1, 3)))  # type: ignore[no-any-return]


def train(data: Digits, words: Tokenizer, recipe: Recipe, folder: Path) -> VisionLanguageModel:
    """Fit the model; the same seed and thread count give the same one, interrupted or not.

    The tower first learns to read, which saves the decoder most of its training.
    """
    torch.manual_seed(recipe.seed)
    model = VisionLanguageModel(VLMShape(words.get_vocab_size()))
    reader = Reader(model.tower)

    def asked(step: int) -> list[Question]:
        return questions(data.images, data.labels, recipe.batch, recipe.seed * 10**6 + step)

    def reading(step: int) -> Tensor:
        batch = asked(-1 - step)
        shown = [[10 if one is None else one for one in question.shown] for question in batch]
        logits = reader(as_input([question.picture for question in batch]))
        return F.cross_entropy(logits.flatten(0, 1), torch.tensor(shown).flatten())

    def answering(step: int) -> Tensor:
        batch = rows(asked(step), words)
        logits = model(batch.pictures, batch.tokens)
        loss = _next_word(logits, batch.targets)
        return (
            loss if step < recipe.asking else loss + recipe.share * _next_word(logits, batch.asking)
        )

    fit(reader, reading, recipe.reading, recipe, folder / "reading.ckpt")
    fit(model, answering, recipe.answering, recipe, folder / "answering.ckpt")
    return model.eval()


def _next_word(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED)


def fit(
    model: nn.Module, loss_at: Callable[[int], Tensor], steps: int, recipe: Recipe, file: Path
) -> None:
    """Minimize the loss over `steps`, from where `file` says that an earlier run has stopped."""
    optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    done = _resume(parts, file)
    with Progress(file.stem, steps, hint="Ctrl-C keeps what is done") as progress:
        progress.skip(done)
        for step in range(done, steps):
            loss = loss_at(step)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            progress.advance(note=f"loss {loss.item():.3f}")
            if (step + 1) % recipe.save_every == 0 or step + 1 == steps:
                _save(parts, step + 1, file)


def _save(parts: dict[str, Any], step: int, file: Path) -> None:
    states = {name: part.state_dict() for name, part in parts.items()}
    with replacing(file) as temporary:
        torch.save({"step": step, **states}, temporary)


def _resume(parts: dict[str, Any], file: Path) -> int:
    """The steps that an earlier run has done."""
    if not file.is_file():
        return 0
    saved = torch.load(file, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return int(saved["step"])


@torch.no_grad()
def right(
    model: VisionLanguageModel, words: Tokenizer, asked: Sequence[Question]
) -> NDArray[np.bool_]:
    """Which questions a greedy answer gets right: after each right word the next one comes."""
    batch = rows(asked, words)
    found = model(batch.pictures, batch.tokens).argmax(-1) == batch.targets
    all_found: NDArray[np.bool_] = (found | (batch.targets == _IGNORED)).all(1).numpy()
    return all_found


def by_kind(asked: Sequence[Question], found: NDArray[np.bool_]) -> dict[str, float]:
    """The share of right answers to each kind of question."""
    kinds = np.array([question.kind for question in asked])
    return {kind: float(found[kinds == kind].mean()) for kind in KINDS if kind in kinds}


def save_weights(model: VisionLanguageModel, file: Path) -> None:
    """Half precision: what is exported is made from these, so they are the model."""
    tied = "decoder.lm_head.weight"  # is the embedding
    state = {name: value.half() for name, value in model.state_dict().items() if name != tied}
    with replacing(file) as temporary:
        save_file(state, temporary)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, metavar="FOLDER", required=True)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order, so the same weights whatever the core count
    words, (data, held_out) = tokenizer(), digits()
    model = train(data, words, Recipe(), given.output)
    save_weights(model, given.output / "digits_vlm.safetensors")
    for level in LEVELS:
        asked = questions(held_out.images, held_out.labels, 1000, 0, level)
        shares = by_kind(asked, right(model, words, asked))
        print(level, ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items()))


if __name__ == "__main__":
    main()
