"""Ways to answer questions about pictures: the runtime's own, FOA's prompts, and TENT in torch.

FOA (Niu et al., ICML 2024) searches three prompts by CMA-ES: rows before the picture's own, which
the file takes as they are.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from zotta_edge.models import embedded
from zotta_edge.models.picture_questions import Question
from zotta_edge.runtime.generate.generation import Completion, complete, steps
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.questions import Question as Asked
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.methods.foa.settings import FoaSettings
from zotta_edge.runtime.methods.foa.strategy import Strategy

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

    def tokens(self) -> float:
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


class Answerer(Protocol):
    """What every way offers."""

    def answer(self, asked: Sequence[Question]) -> list[str]: ...

    def tokens(self) -> float:
        """Tokens that went through the network, of all rows."""
        ...


def answerer(name: str, settings: dict[str, Any] | None = None) -> Answerer:
    """A method by name, as new."""
    given = SETTINGS.get(name, {}) if settings is None else settings
    if name == "foa":
        return Foa(given)
    if name in ("tent", "none fp32"):
        from picture_tent import Tent  # torch weighs more than all the others need

        return Tent(given, LIMIT)
    return Device(name, given)
