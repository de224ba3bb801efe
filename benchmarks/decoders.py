"""Real decoders under shift: what adaptation does to their answers, their losses and their cost.

    python benchmarks/decoders.py questions --model smollm2_int8.onnx --count 40 --seeds 3
    python benchmarks/decoders.py questions --model stories15m_int8.onnx --shifts mixed --count 1000
    python benchmarks/decoders.py text --model stories15m_int8.onnx --texts a.txt b.txt
    python benchmarks/decoders.py project

`questions`: accuracy on templated questions, plain and shifted; how many answers change, how long
they get, how many are newly empty or go in circles (`mixed`: all shifts in one stream; `stories`:
openings of children's stories). `text`: loss a token of what follows a window of text, adapted to
that window. `project`: memory, passes and speed of Qwen2.5-VL-3B in 4 bits on a Jetson-class
device, by arithmetic. The first two print a Markdown table, one row a method; seconds are the
processor's. --dev takes the development questions, --set NAME=VALUE changes a setting.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from decoder_questions import SHIFTS, STREAMS, is_right, questions
from decoder_streams import Stream, keep, read, table

from zotta_edge.progress import tracked
from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
from zotta_edge.runtime.generate.methods.zotta import token_loss
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.questions import Question
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.memory import with_peak

METHODS = ("none", "zotta", "perplexity", "slot")
_SEEDED = ("zotta", "perplexity")  # the others give the same loss with any seed


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.study == "project":
        from decoder_projection import table

        print(table())
        return 0
    print(_questions(args) if args.study == "questions" else _texts(args))
    return 0


def _questions(args: argparse.Namespace) -> str:
    """Every method on every stream, each from the source on; what --records has is not repeated."""
    streams = read(args.records) if args.records else []
    known = {each.key for each in streams}
    seeds = range(args.seed, args.seed + args.seeds)
    for seed, shift, method in product(seeds, args.shifts, args.methods):
        if (method, shift, seed) in known:
            continue
        streams.append(_measured(args, method, shift, seed))
        if args.records:
            keep(args.records, streams[-1])
    return table(streams)


def _measured(args: argparse.Namespace, method: str, shift: str, seed: int) -> Stream:
    model = _loaded(args, method, seed)
    stream, peak = with_peak(lambda: _asked(model, args, shift, seed))
    return replace(stream, megabytes=(peak or 0) / 2**20)


def _asked(model: AdaptiveDecoder, args: argparse.Namespace, shift: str, seed: int) -> Stream:
    asked = questions(args.count, shift, not args.dev, seed)
    engine, start = model.engine, time.process_time()
    found = [model.answer([Question(each.text)])[0] for each in tracked(asked, shift)]
    seconds = time.process_time() - start
    right = tuple(is_right(each, reply.text) for each, reply in zip(asked, found, strict=True))
    answers = tuple(reply.tokens for reply in found)
    cost = (engine.passes, engine.tokens, seconds, 0.0)
    return Stream(model.method, shift, seed, right, answers, *cost)


def _loaded(args: argparse.Namespace, method: str, seed: int) -> AdaptiveDecoder:
    settings = GenerationSettings(max_tokens=args.max_tokens, seed=seed).override(args.set)
    return AdaptiveDecoder.load(args.model, settings, method, threads=args.threads)


def _texts(args: argparse.Namespace) -> str:
    lines = [_TEXT_HEADING, "| --- " * _TEXT_HEADING.count(" |") + "|"]
    for method in args.methods:
        for seed in range(args.seed, args.seed + (args.seeds if method in _SEEDED else 1)):
            model = _loaded(args, method, seed)
            cells, peak = with_peak(lambda model=model: _text(model, args))
            memory = "" if peak is None else f"{peak / 2**20:.0f}"
            lines.append(f"| {method} | {seed} | " + " | ".join([*cells, memory]) + " |")
    return "\n".join(lines)


_TEXT_HEADING = (
    "| method | seed | loss a token | change | windows "
    "| passes a prompt | tokens read a prompt | tokens a second | MB |"
)


def _text(model: AdaptiveDecoder, args: argparse.Namespace) -> list[str]:
    """A window is the prompt; what is measured is the loss of the window behind it."""
    losses, plain, seconds = [], [], 0.0
    for path in args.texts:
        if not args.together:
            model.reset()
        ids = model.tokenizer.encode(path.read_text(encoding="utf-8"))
        windows = [ids[at : at + 2 * args.window] for at in range(0, len(ids), args.window)]
        whole = [each for each in windows if len(each) == 2 * args.window][: args.count]
        for window in tracked(whole, path.name):
            start = time.process_time()
            losses.append(_next_loss(model, window, args.window, adapt=True))
            seconds += time.process_time() - start
            plain.append(_next_loss(model, window, args.window, adapt=False))
    change = np.array(losses) - np.array(plain)
    spread = change.std() / max(1, len(change)) ** 0.5
    cells = [f"{np.mean(losses):.4f}", f"{change.mean():+.4f} +- {spread:.4f}", str(len(losses))]
    return cells + _cost(model, 2 * len(losses) * args.window, seconds)


def _next_loss(model: AdaptiveDecoder, ids: Sequence[int], cut: int, adapt: bool) -> float:
    """Loss of ids[cut:] behind ids[:cut], with what a method makes of the latter."""
    move = model.move([Prompt(tuple(ids[:cut]))]) if adapt else None
    whole = np.array([ids])
    tokens = Tokens(whole[:, :-1], np.ones_like(whole[:, :-1]), np.arange(len(ids) - 1)[None])
    scales, shift = (move.scales, move.shift) if move else (None, None)
    with _uncounted(model.engine):
        logits = model.engine.forward(tokens, None, scales, shift, cut - 1).logits
    return float(token_loss(logits, whole[0, cut:]).mean())


@contextmanager
def _uncounted(engine: DecoderEngine) -> Iterator[None]:
    """Passes that only measure are not the method's."""
    passes, tokens = engine.passes, engine.tokens
    yield
    engine.passes, engine.tokens = passes, tokens


def _cost(model: AdaptiveDecoder, read: int, seconds: float) -> list[str]:
    prompts = max(1, model.status()["prompts"])
    engine = model.engine
    numbers = (engine.passes / prompts, engine.tokens / prompts, read / seconds)
    return [f"{number:.1f}" for number in numbers]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("questions", "text", "project"))
    parser.add_argument("--model", type=Path, help="an adaptable decoder")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--texts", nargs="+", type=Path, default=[])
    parser.add_argument(
        "--count", type=int, default=40, help="questions a shift, or windows a text"
    )
    parser.add_argument("--shifts", nargs="+", default=tuple(SHIFTS), choices=STREAMS)
    parser.add_argument("--records", type=Path, help="where finished streams are kept, and found")
    parser.add_argument("--window", type=int, default=64, help="tokens")
    parser.add_argument("--together", action="store_true", help="texts are one stream")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=1, help="of questions and perturbations")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dev", action="store_true", help="the development questions")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
