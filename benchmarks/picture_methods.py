"""Ways to answer questions about pictures that a device does not have: FOA's prompts, and TENT.

FOA (Niu et al., ICML 2024) searches three prompts by CMA-ES: rows before the picture's own, which
the file takes as they are. TENT (Wang et al., ICLR 2021) needs torch and back-propagation.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zotta_edge.models import embedded
from zotta_edge.models.export_vlm import load
from zotta_edge.models.picture_questions import Question
from zotta_edge.models.train_vlm import END_TOKEN, as_input, prompt, tokenizer
from zotta_edge.runtime.generate.generation import Completion, complete, steps
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.model import Question as Asked
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.methods.foa.settings import FoaSettings
from zotta_edge.runtime.methods.foa.strategy import Strategy

WEIGHTS = Path(__file__).parent / "weights" / "digits_vlm.safetensors"
SETTINGS: dict[str, dict[str, Any]] = {  # chosen on `DEVELOPMENT` of picture_questions.py
    "zotta": {"learning_rate": 1.0, "max_step": 0.02, "max_distance": 0.2},
    "perplexity": {"learning_rate": 0.1},
    "foa": {"foa_candidates": 8, "foa_sigma": 0.02},
    "tent": {"rate": 0.01},
    "none fp32": {"rate": 0.0},
}
LIMIT = 8  # tokens; the longest right answer has four


class Device:
    """The INT8 file with one of the runtime's methods."""

    def __init__(self, method: str, settings: dict[str, Any]) -> None:
        given = GenerationSettings(max_tokens=LIMIT).replace(settings)
        self.model = AdaptiveDecoder.load(embedded.VLM, given, method, threads=1)

    def answer(self, asked: Sequence[Question]) -> list[str]:
        replies = self.model.answer([Asked(one.text, one.picture) for one in asked])
        return [reply.text for reply in replies]

    def passes(self) -> float:
        return self.model.engine.tokens  # of all rows: what a pass costs


class Foa(Device):
    """The candidate whose answers to the batch are surest answers it."""

    PROMPTS = 3

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__("none", {})
        self._size = self.model.info.shape.hidden
        self._strategy = Strategy(self.PROMPTS * self._size, FoaSettings().replace(settings))
        self._best: Any = None

    def answer(self, asked: Sequence[Question]) -> list[str]:
        prompts = [self.model.prompt(Asked(one.text, one.picture)) for one in asked]
        strategy, candidates = self._strategy.ask()
        known = [] if self._best is None else [self._best]
        tried = [(each, *self._try(prompts, each)) for each in (*known, *candidates)]
        losses = [loss for _, loss, _ in tried[len(known) :]]
        self._strategy.tell(strategy, candidates, losses)
        self._best, _, answers = min(tried, key=lambda one: one[1])
        return [self.model.tokenizer.decode(each.tokens) for each in answers]

    def _try(self, prompts: Sequence[Prompt], candidate: Any) -> tuple[float, list[Completion]]:
        """Mean entropy of the answers' tokens, and the answers."""
        engine, vision = self.model.engine, self.model.info.vision
        assert vision is not None
        rows = candidate.reshape(self.PROMPTS, self._size).astype(np.float32)
        longer = [
            Prompt(
                (vision.image_token,) * self.PROMPTS + one.ids,
                np.concatenate([rows, one.image_rows]) if one.image_rows is not None else rows,
            )
            for one in prompts
        ]
        found = steps(engine, self.model.batch(longer), LIMIT)
        answers = complete(found, len(prompts), self.model.info.prompting.stop)
        return float(np.mean([each.entropy for each in answers])), answers


class Tent:
    """Adam on the scales of the post-attention norms, in torch; answers come before the step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(1)
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
            row for row, start in zip(rows, starts, strict=True) if _goes_on(row, start)
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

    def passes(self) -> float:
        return self._tokens


def _goes_on(row: list[int], start: list[int]) -> bool:
    return row[-1] != END_TOKEN and len(row) < len(start) + LIMIT


def answerer(name: str, settings: dict[str, Any] | None = None) -> Device | Tent:
    """A method by name, as new."""
    given = SETTINGS.get(name, {}) if settings is None else settings
    if name == "foa":
        return Foa(given)
    return Tent(given) if name in ("tent", "none fp32") else Device(name, given)
