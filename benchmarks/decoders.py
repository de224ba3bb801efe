"""Real decoders under shift: what adaptation does to their answers, their losses and their cost.

    python benchmarks/decoders.py questions --model smollm2_int8.onnx --count 40
    python benchmarks/decoders.py text --model stories15m_int8.onnx --texts a.txt b.txt
    python benchmarks/decoders.py endless --model stories15m_int8.onnx --count 1000
    python benchmarks/decoders.py project

`questions`: accuracy on templated questions, plain and shifted. `text`: loss a token of what
follows a window of text, adapted to that window. `endless`: how long answers get, how many are
empty, how many differ. `project`: memory, passes and speed of Qwen2.5-VL-3B in 4 bits on a
Jetson-class device, by arithmetic. The first three print a Markdown table, one row a method; --dev
takes the development questions, --set NAME=VALUE changes a setting.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from decoder_questions import SHIFTS, Asked, is_right, questions

from zotta_edge.progress import tracked
from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
from zotta_edge.runtime.generate.guard import fault
from zotta_edge.runtime.generate.methods.zotta import token_loss
from zotta_edge.runtime.generate.model import AdaptiveDecoder, Question
from zotta_edge.runtime.generate.prompts import Prompt
from zotta_edge.runtime.generate.settings import GenerationSettings
from zotta_edge.runtime.memory import with_peak

METHODS = ("none", "zotta", "perplexity", "slot")


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.study == "project":
        from decoder_projection import table

        print(table())
        return 0
    study: Callable[[AdaptiveDecoder, argparse.Namespace], list[str]] = {
        "questions": _questions,
        "text": _text,
        "endless": _endless,
    }[args.study]
    print(_HEADINGS[args.study] + "\n" + "| --- " * _HEADINGS[args.study].count(" |") + "|")
    for method in args.methods:
        for seed in range(args.seeds if method in ("zotta", "perplexity") else 1):
            settings = GenerationSettings(max_tokens=args.max_tokens, seed=seed).override(args.set)
            model = AdaptiveDecoder.load(args.model, settings, method, threads=args.threads)
            cells, peak = with_peak(lambda model=model: study(model, args))
            memory = "" if peak is None else f"{peak / 2**20:.0f}"
            print(f"| {method} | {seed} | " + " | ".join([*cells, memory]) + " |", flush=True)
    return 0


_COST = "passes a prompt | tokens read a prompt | tokens a second | MB |"
_HEADINGS = {
    "questions": f"| method | seed | {' | '.join(SHIFTS)} | shifted mean | {_COST}",
    "text": f"| method | seed | loss a token | change | {_COST}",
    "endless": f"| method | seed | prompts | longest | empty | in circles | changed | {_COST}",
}


def _questions(model: AdaptiveDecoder, args: argparse.Namespace) -> list[str]:
    """Each shift is a stream of its own."""
    shares, start, written = [], time.monotonic(), 0
    for shift in SHIFTS:
        model.reset()
        asked = questions(args.count, shift, not args.dev)
        right, tokens = zip(*(_asked(model, each) for each in tracked(asked, shift)), strict=True)
        shares.append(100 * float(np.mean(right)))
        written += sum(tokens)
    cells = [f"{share:.1f}" for share in (*shares, float(np.mean(shares[1:])))]
    return cells + _cost(model, written, time.monotonic() - start)


def _asked(model: AdaptiveDecoder, asked: Asked) -> tuple[bool, int]:
    (reply,) = model.answer([Question(asked.text)])
    return is_right(asked, reply.text), len(reply.tokens)


def _text(model: AdaptiveDecoder, args: argparse.Namespace) -> list[str]:
    """A window is the prompt; what is measured is the loss of the window behind it."""
    losses, plain, start = [], [], time.monotonic()
    for path in args.texts:
        model.reset()
        ids = model.tokenizer.encode(path.read_text(encoding="utf-8"))
        windows = [ids[at : at + 2 * args.window] for at in range(0, len(ids), args.window)]
        whole = [each for each in windows if len(each) == 2 * args.window][: args.count]
        for window in tracked(whole, path.name):
            losses.append(_next_loss(model, window, args.window, adapt=True))
            plain.append(_next_loss(model, window, args.window, adapt=False))
    change = np.array(losses) - np.array(plain)
    spread = change.std() / max(1, len(change)) ** 0.5
    cells = [f"{np.mean(losses):.4f}", f"{change.mean():+.4f} +- {spread:.4f}"]
    return cells + _cost(model, len(losses) * args.window, time.monotonic() - start)


def _next_loss(model: AdaptiveDecoder, ids: Sequence[int], cut: int, adapt: bool) -> float:
    """Loss of ids[cut:] behind ids[:cut], with what a method makes of the latter."""
    move = model.move([Prompt(tuple(ids[:cut]))]) if adapt else None
    whole = np.array([ids])
    tokens = Tokens(whole[:, :-1], np.ones_like(whole[:, :-1]), np.arange(len(ids) - 1)[None])
    scales, shift = (move.scales, move.shift) if move else (None, None)
    with _uncounted(model.engine):
        logits = model.engine.forward(tokens, None, scales, shift, cut - 1).logits
    return float(token_loss(logits, whole[0, cut:]).mean())


def _endless(model: AdaptiveDecoder, args: argparse.Namespace) -> list[str]:
    """Prompts of all shifts in one stream; `changed`: other answers than without adaptation."""
    kinds = list(SHIFTS)
    asked = [questions(1, kinds[n % len(kinds)], not args.dev, n)[0] for n in range(args.count)]
    start, written, longest, empty, circles, changed = time.monotonic(), 0, 0, 0, 0, 0
    plain = AdaptiveDecoder(model.engine, model.settings, "none", model.tokenizer)
    spent = 0.0
    for each in tracked(asked, "asking"):
        prompt = model.prompt(Question(each.text))
        (answer,) = model.complete([prompt])
        before = time.monotonic()
        with _uncounted(model.engine):
            (source,) = plain.complete([prompt]) if model.method != "none" else (answer,)
        spent += time.monotonic() - before
        written, longest = written + len(answer.tokens), max(longest, len(answer.tokens))
        empty += not answer.tokens and bool(source.tokens)
        circles += bool(fault(answer)) and not fault(source)
        changed += answer.tokens != source.tokens
    counts = [str(n) for n in (len(asked), longest, empty, circles, changed)]
    return counts + _cost(model, written, time.monotonic() - start - spent)


@contextmanager
def _uncounted(engine: DecoderEngine) -> Iterator[None]:
    """Passes that only measure are not the method's."""
    passes, tokens = engine.passes, engine.tokens
    yield
    engine.passes, engine.tokens = passes, tokens


def _cost(model: AdaptiveDecoder, written: int, seconds: float) -> list[str]:
    prompts = max(1, model.status()["prompts"])
    engine = model.engine
    numbers = (engine.passes / prompts, engine.tokens / prompts, written / seconds)
    return [f"{number:.1f}" for number in numbers]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("questions", "text", "endless", "project"))
    parser.add_argument("--model", type=Path, help="an adaptable decoder")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--texts", nargs="+", type=Path, default=[])
    parser.add_argument(
        "--count", type=int, default=40, help="questions a shift, or windows a text"
    )
    parser.add_argument("--window", type=int, default=64, help="tokens")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=1, help="of methods that are random")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dev", action="store_true", help="the development questions")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
