"""TENT (Wang et al., ICLR 2021) on the vision-language model's weights; torch, back-propagation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zotta_edge.models.export_vlm import load
from zotta_edge.models.picture_questions import Question
from zotta_edge.models.train_vlm import END_TOKEN, as_input, prompt, tokenizer

WEIGHTS = Path(__file__).parent / "weights" / "digits_vlm.safetensors"


class Tent:
    """Adam on the scales of the post-attention norms, in torch; answers come before the step."""

    def __init__(self, settings: dict[str, Any], limit: int) -> None:
        torch.set_num_threads(1)
        self._limit = limit
        self._model, self._words = load(WEIGHTS), tokenizer()
        for each in self._model.parameters():
            each.requires_grad_(False)
        blocks = self._model.decoder.model.layers
        scales = [block.post_attention_layernorm.weight.requires_grad_() for block in blocks]
        self._optimizer = torch.optim.Adam(scales, settings["rate"])
        self._tokens = 0

    def answer(self, asked: Sequence[Question]) -> list[str]:
        pictures = as_input([one.picture for one in asked])
        starts = [self._words.encode(prompt(one.text)).ids for one in asked]
        rows = [list(start) for start in starts]
        while live := [
            row for row, start in zip(rows, starts, strict=True) if self._goes_on(row, start)
        ]:
            with torch.no_grad():
                logits = self._logits(pictures, rows)
            best = [int(logits[at, len(row) - 1].argmax()) for at, row in enumerate(rows)]
            for row, token in zip(rows, best, strict=True):
                if any(row is one for one in live):
                    row.append(token)
        if self._optimizer.param_groups[0]["lr"]:
            self._step(pictures, rows, starts)
        answers = [row[len(start) :] for row, start in zip(rows, starts, strict=True)]
        return [
            self._words.decode([token for token in row if token != END_TOKEN]) for row in answers
        ]

    def _step(self, pictures: Tensor, rows: list[list[int]], starts: list[list[int]]) -> None:
        scores = self._logits(pictures, [row[:-1] for row in rows]).log_softmax(-1)
        entropies = -(scores.exp() * scores).sum(-1)
        places = zip(rows, starts, strict=True)
        each = [
            entropies[at, len(start) - 1 : len(row) - 1] for at, (row, start) in enumerate(places)
        ]
        self._optimizer.zero_grad()
        torch.cat(each).mean().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _logits(self, pictures: Tensor, rows: list[list[int]]) -> Tensor:
        length = max(map(len, rows))
        tokens = torch.tensor([row + [END_TOKEN] * (length - len(row)) for row in rows])
        self._tokens += tokens.numel() + len(rows) * 16
        logits: Tensor = self._model(pictures, tokens)
        return logits

    def tokens(self) -> float:
        return self._tokens

    def _goes_on(self, row: list[int], start: list[int]) -> bool:
        return row[-1] != END_TOKEN and len(row) < len(start) + self._limit
