"""`zotta-edge generate` without a question: the embedded model on pictures of drifted digits."""

import argparse
import sys
import time
from typing import TYPE_CHECKING

from zotta_edge.progress import tracked

if TYPE_CHECKING:
    from zotta_edge.models.picture_questions import Question
    from zotta_edge.runtime.generate.settings import GenerationSettings

_QUESTIONS, _SHOWN, _BATCH = 200, 5, 8


def run(args: argparse.Namespace, settings: "GenerationSettings") -> int:
    """Ask the same with and without adaptation; prints a few answers, and how many were right."""
    from zotta_edge.models import embedded

    method = "zotta" if args.method == "none" else args.method
    asked = embedded.drifted_questions(args.limit or _QUESTIONS)
    print(f"{len(asked)} questions about {embedded.ABOUT_QUESTIONS}", file=sys.stderr)
    plain, plain_seconds = _answers(args, settings, "none", asked)
    given, seconds = _answers(args, settings, method, asked)
    for question, answer in list(zip(asked, given, strict=True))[:_SHOWN]:
        shown = " ".join("_" if digit is None else str(digit) for digit in question.shown)
        wanted = "" if answer == question.answer else f"  (right: {question.answer})"
        print(f"[{shown}]  {question.text}  {answer}{wanted}")
    print(f"right      {method} {_share(asked, given)}   unadapted {_share(asked, plain)}")
    print(f"cost       {seconds / max(plain_seconds, 1e-9):.1f}x the time of plain generation")
    return 0


def _answers(
    args: argparse.Namespace, settings: "GenerationSettings", method: str, asked: "list[Question]"
) -> tuple[list[str], float]:
    from zotta_edge.models import embedded
    from zotta_edge.runtime.generate.model import AdaptiveDecoder
    from zotta_edge.runtime.generate.questions import Question

    model = AdaptiveDecoder.load(
        embedded.VLM, settings, method, threads=args.threads, provider=args.provider
    )
    prompts = [Question(one.text, one.picture) for one in asked]
    started, given = time.perf_counter(), list[str]()
    for at in tracked(range(0, len(prompts), _BATCH), f"answering, {method}"):
        given += [reply.text for reply in model.answer(prompts[at : at + _BATCH])]
    return given, time.perf_counter() - started


def _share(asked: "list[Question]", given: list[str]) -> str:
    right = sum(answer == question.answer for question, answer in zip(asked, given, strict=True))
    return f"{right / len(asked):.1%}"
