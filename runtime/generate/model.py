"""The library's entry for decoders: a model that adapts to its prompts while it answers."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge.decoder_format import DecoderInfo
from zotta_edge.errors import NotFiniteError, ZottaError
from zotta_edge.runtime.events import Discarded, Events
from zotta_edge.runtime.generate.engine import DecoderEngine
from zotta_edge.runtime.generate.eyes import Eyes
from zotta_edge.runtime.generate.generation import Completion, Step, complete, steps
from zotta_edge.runtime.generate.guard import (
    AnswerReplaced,
    AnswerWatch,
    DecoderForgot,
    fault,
    loops,
)
from zotta_edge.runtime.generate.methods.contract import Move
from zotta_edge.runtime.generate.methods.registry import find
from zotta_edge.runtime.generate.prompts import Batch, Prompt, check_prompt
from zotta_edge.runtime.generate.questions import Asking, Question
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.generate.surprise import Gate, Look
from zotta_edge.runtime.generate.tokenizer import Stream, Tokenizer
from zotta_edge.runtime.state import fields, file


@dataclass(frozen=True)
class Reply:
    """What the model answered."""

    text: str
    tokens: tuple[int, ...]  # the same as token ids
    entropy: float  # mean of its tokens', in nats
    stopped: bool  # by the model; False: by the limit


class AdaptiveDecoder:
    """A decoder's file that adapts while it answers.

    Calls take turns. `answer` takes texts, `complete` token ids; both learn unless `adapt` is
    False.

    Parameters
    ----------
    engine
        An opened file; `AdaptiveDecoder.load` opens one.
    settings
        None: the defaults.
    method
        A way to adapt, by name.
    tokenizer
        None: the one in the file.
    eyes
        What turns images into rows; None for a model that reads text alone.
    """

    def __init__(
        self,
        engine: DecoderEngine,
        settings: GenerationSettings | None = None,
        method: str = "none",
        tokenizer: Tokenizer | None = None,
        eyes: Eyes | None = None,
    ) -> None:
        self.engine, self.settings, self.method = engine, settings or GenerationSettings(), method
        self.events = Events()
        self._tokenizer, self._eyes = tokenizer, eyes
        self._method = find(method)(engine, self.settings, self.events)
        least = self.settings.surprise if method != "none" else 0
        self._gate = Gate(engine, least, self.settings.kilobytes)
        self._watch = AnswerWatch()
        self._turn = threading.RLock()
        self._counts = dict.fromkeys(("prompts", "resets"), 0)
        self.reset()
        self._counts["resets"] = 0
        self._new = file.outline(self._state())

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: GenerationSettings | None = None,
        method: str = "none",
        *,
        tokenizer: Path | None = None,
        threads: int | None = None,
        provider: str | None = None,
    ) -> "AdaptiveDecoder":
        """Open a decoder's file, and the vision file beside it if it has one."""
        engine = DecoderEngine.open(path, threads, provider)
        known = tokenizer is not None or engine.info.tokenizer is not None
        eyes = (
            Eyes.open(engine.path, engine.info, threads, provider) if engine.info.vision else None
        )
        words = Tokenizer.of(engine.info, tokenizer) if known else None
        return cls(engine, settings, method, words, eyes)

    @property
    def info(self) -> DecoderInfo:
        """What the file says of itself."""
        return self.engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.of(self.info)
        return self._tokenizer

    def prompt(self, question: Question) -> Prompt:
        """Tokens of a question, in the model's template, and the rows of its image."""
        return Asking(self.info, self.tokenizer, self._eyes).prompt(question)

    def answer(self, questions: Sequence[Question], adapt: bool = True) -> list[Reply]:
        """Answer a batch of questions, and learn from it."""
        prompts = [self.prompt(question) for question in questions]
        return [self._reply(each) for each in self.complete(prompts, adapt)]

    def complete(self, prompts: Sequence[Prompt], adapt: bool = True) -> list[Completion]:
        """`answer` for prompts of token ids."""
        if not self.info.pads and len({len(prompt.ids) for prompt in prompts}) > 1:
            return [self.complete([prompt], adapt)[0] for prompt in prompts]
        batch = self.batch(prompts)
        with self._turn:
            look = self._gate.look(batch)
            if 0 < look.expected.sum() < len(batch):
                return self._apart(prompts, look, adapt)
            move = self._move(batch, adapt, look)
            answers = list(move.answers) or self._written(batch, move)
            pairs = zip(prompts, answers, strict=True)
            answers = [self._better(prompt, answer, move) for prompt, answer in pairs]
            if adapt and not look.expected.all():
                self._watch_over(answers)
        return answers

    def _apart(self, prompts: Sequence[Prompt], look: Look, adapt: bool) -> list[Completion]:
        """Those that the source expects and the others, each as a batch of its own."""
        found = dict[int, Completion]()
        for kind in (True, False):
            places = [place for place, one in enumerate(look.expected) if one == kind]
            answers = self.complete([prompts[place] for place in places], adapt)
            found |= dict(zip(places, answers, strict=True))
        return [found[place] for place in range(len(prompts))]

    def move(self, prompts: Sequence[Prompt]) -> Move:
        """Learn from prompts without answering them; with what they would be answered."""
        batch = self.batch(prompts)
        with self._turn:
            return self._move(batch, True, self._gate.look(batch))

    def stream(self, question: Question, adapt: bool = True) -> Iterator[str]:
        """The pieces of one answer's text as they come; one that goes in circles ends early."""
        yield from self.stream_tokens(self.prompt(question), adapt)

    def stream_tokens(
        self, prompt: Prompt, adapt: bool = True, settings: GenerationSettings | None = None
    ) -> Iterator[str]:
        """`stream` for a prompt of token ids; `settings` are for this answer alone."""
        batch, text, made = self.batch([prompt]), Stream(self.tokenizer), list[Step]()
        with self._turn:
            look = self._gate.look(batch)
            move = self._move(batch, adapt, look, settings)
            if move.answers and (settings or self.settings).temperature == 0:
                answer = self._better(prompt, move.answers[0], move, settings)
                yield self.tokenizer.decode(answer.tokens)
                self._watch_over([answer])
                return
            for step in self._steps(batch, move, settings):
                made.append(step)
                token = int(step.tokens[0])
                if token not in self.info.prompting.stop and (new := text.push(token)):
                    yield new
                if not move.is_source and loops([int(each.tokens[0]) for each in made]):
                    break
            (answer,) = complete(iter(made), 1, self.info.prompting.stop)
            if not answer.tokens:  # nothing was said yet: the source may
                answer = self._better(prompt, answer, move, settings)
                yield from [self.tokenizer.decode(answer.tokens)] if answer.tokens else []
            if adapt and not look.expected.all():
                self._watch_over([answer])

    def _move(
        self, batch: Batch, adapt: bool, look: Look, settings: GenerationSettings | None = None
    ) -> Move:
        """How to answer; a prompt that gives no numbers to learn from is answered as it is."""
        self._counts["prompts"] += len(batch)
        if look.expected.all():
            self._gate.expected += len(batch)
            return Move(started=look.started)
        if not adapt:
            return self._method.current()
        try:
            return self._method.prepare(batch, self._limit(batch, settings))
        except NotFiniteError as error:
            self.events.report(Discarded(str(error)))
            self._method.reset()
            return Move()

    def _written(
        self, batch: Batch, move: Move, settings: GenerationSettings | None = None
    ) -> list[Completion]:
        return complete(self._steps(batch, move, settings), len(batch), self.info.prompting.stop)

    def _better(
        self,
        prompt: Prompt,
        answer: Completion,
        move: Move,
        settings: GenerationSettings | None = None,
    ) -> Completion:
        """The answer, or the source's where the answer has a fault that the source's has not."""
        wrong = "" if move.is_source or not self.settings.guard else fault(answer)
        if not wrong:
            return answer
        (plain,) = self._written(self.batch([prompt]), Move(), settings)
        if fault(plain):
            return answer
        self.events.report(AnswerReplaced(f"the adapted answer was {wrong}"))
        return plain

    def _watch_over(self, answers: Sequence[Completion]) -> None:
        if not self.settings.guard:
            return
        for why in filter(None, [self._watch.observe(answer) for answer in answers]):
            self.events.report(DecoderForgot(why))
            self._method.reset()
            self._watch.reset()

    def batch(self, prompts: Sequence[Prompt]) -> Batch:
        """Prompts as the graph takes them, checked."""
        if not prompts:
            raise ZottaError("there are no prompts")
        for prompt in prompts:
            check_prompt(prompt, self.info)
        shape = self.info.shape
        return Batch.of(prompts, self.info.prompting.pad, self.info.vision, shape.positions)

    def reset(self) -> None:
        """Go back to the source, as if newly loaded; only the counts stay."""
        with self._turn:
            self._method.reset()
            self._watch.reset()
            self._rng = np.random.default_rng(self.settings.seed)
            self._counts["resets"] += 1

    def save_state(self, path: str | Path) -> None:
        """Write what was learned."""
        with self._turn:
            file.save(path, self._state(), self.engine.fingerprint, self.method)

    def load_state(self, path: str | Path) -> None:
        """Continue from a saved state; one of another model or method is refused."""
        with self._turn:
            arrays = file.load(path, self._new, self.engine.fingerprint, self.method)
            self._method.restore(fields.section(arrays, "method"))
            self._watch.restore(fields.section(arrays, "watch"))
            self._rng = fields.rng_from_array(arrays["rng"])
            self._counts = {name: int(arrays[name][0]) for name in self._counts}

    def status(self) -> dict[str, Any]:
        """Numbers for reports and dashboards."""
        with self._turn:
            own = {"method": self.method, "passes": self.engine.passes}
            own |= {"tokens": self.engine.tokens, "expected": self._gate.expected}
            return own | self._counts | self._method.status()

    def _limit(self, batch: Batch, settings: GenerationSettings | None = None) -> int:
        """The longest answer: as set, or what is left of the context."""
        most = (settings or self.settings).max_tokens
        return min(most, self.info.shape.context - int(batch.ids.shape[1]))

    def _steps(
        self, batch: Batch, move: Move, settings: GenerationSettings | None = None
    ) -> Iterator[Step]:
        rng = np.random.default_rng(settings.seed) if settings else self._rng
        return steps(
            *(self.engine, batch, self._limit(batch, settings), settings or self.settings),
            *(move.scales, move.shift, rng, move.started),
        )

    def _reply(self, answer: Completion) -> Reply:
        text = self.tokenizer.decode(answer.tokens)
        return Reply(text, answer.tokens, answer.entropy, answer.stopped)

    def _state(self) -> dict[str, NDArray[Any]]:
        counts = {name: np.array([count]) for name, count in self._counts.items()}
        rng = {"rng": fields.rng_to_array(self._rng)}
        return counts | rng | fields.states_of({"method": self._method, "watch": self._watch})
