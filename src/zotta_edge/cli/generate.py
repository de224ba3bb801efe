"""`zotta-edge generate`"""

import argparse
import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zotta_edge.cli import generate_demo
from zotta_edge.cli.numbers import positive
from zotta_edge.cli.questions_file import is_right, read_questions
from zotta_edge.errors import ZottaError
from zotta_edge.files import check_writable, replacing
from zotta_edge.json_numbers import finite
from zotta_edge.progress import Progress

if TYPE_CHECKING:
    from zotta_edge.runtime.generate.model import AdaptiveDecoder
    from zotta_edge.runtime.generate.questions import Question
    from zotta_edge.runtime.generate.settings import GenerationSettings

# What says nothing without a question, in which case the embedded model has its own.
_OF_QUESTIONS = (
    *("model", "image", "answers", "output", "report", "tokenizer", "raw", "stop", "state"),
)
_MOST = 2**24  # characters read from stdin

HELP = """Answer prompts with a decoder that adapts while it answers

  zotta-edge generate
  zotta-edge generate --model smollm2_int8.onnx --prompt "What is the capital of France?"
  zotta-edge generate --model vlm_int8.onnx --image photo.png --prompt "What is the sum?"
  zotta-edge generate --model smollm2_int8.onnx --jsonl questions.jsonl --output answers.jsonl
  zotta-edge generate --model smollm2_int8.onnx --jsonl questions.jsonl --answers --method slot

Without arguments the embedded model answers questions about drifted pictures of digits, with and
without adaptation; it also answers where there is no --model.

The model is a file that `zotta-edge export` made from a GGUF file, a llama2.c file, a folder of
transformers, or an ONNX decoder of optimum or onnxruntime-genai. A single prompt's answer is
written as it comes. Of a JSONL file, each line is an object with "prompt" and, if it has one,
"image" (a path beside the file); with --answers its "answer" (a text, or a list of which one must
be found in the reply) is used for scoring, and for nothing else. Images of any size are resized as
the model file says (`zotta-edge inspect`), whatever their shape; strips are refused.

Methods: none answers as the model is. slot fits one vector on the prompt's own tokens, for no
further pass. perplexity and zotta move the scales of the norms behind attention by perturbed
passes, towards a lower loss of the prompt and towards surer answers (the paper's objective);
what they learn stays for the next prompts, and in --state. A prompt of text whose loss is no higher
than the model expects of its own text is answered by the model as it is (--set surprise=0: adapt to
all).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="a decoder; default: the embedded one"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT", help="one question; - reads it from stdin")
    source.add_argument("--jsonl", type=Path, metavar="FILE", help="many of them")
    parser.add_argument("--image", type=Path, metavar="FILE", help="what the question is about")
    parser.add_argument("--answers", action="store_true", help="score against the file's answers")
    parser.add_argument("--output", type=Path, metavar="FILE", help="replies, as JSONL")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="JSON",
        help="of a JSONL: how many were right, cost, settings",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="stop after N questions")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json")
    parser.add_argument("--raw", action="store_true", help="leave the model's template out")
    group = parser.add_argument_group("generation")
    group.add_argument("--max-tokens", type=positive, metavar="N", help="default: 64")
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end an answer before this text; repeatable",
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0, the default: greedy")
    group.add_argument("--seed", type=int, metavar="N", help="default: 0")
    group = parser.add_argument_group("adaptation")
    group.add_argument("--method", default="none", metavar="NAME", help="see above; default: none")
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="one setting; repeatable"
    )
    group.add_argument("--list-settings", action="store_true", help="show every setting and stop")
    group.add_argument(
        "--state", type=Path, metavar="FILE", help="resume from here if it exists, save here"
    )
    group = parser.add_argument_group("execution")
    group.add_argument("--provider", metavar="NAME", help="cpu (default), cuda, ...")
    group.add_argument("--threads", type=positive, metavar="N", help="default: physical cores")


def run(args: argparse.Namespace) -> int:
    if args.list_settings:
        return _list_settings()
    if args.prompt is None and args.jsonl is None:
        if any(getattr(args, name) for name in _OF_QUESTIONS):
            raise ZottaError("nothing was asked: give --prompt TEXT or --jsonl FILE")
        return generate_demo.run(args, _settings(args))
    if args.jsonl and args.image:
        raise ZottaError('--image goes with --prompt: name images in the JSONL as "image"')
    if args.answers and not args.jsonl:
        raise ZottaError("--answers needs --jsonl: a file whose lines have an answer")
    if args.report and not args.jsonl:
        raise ZottaError("--report needs --jsonl: it counts questions")
    if "" in args.stop:
        raise ZottaError("--stop needs a text, not an empty one")
    for file in filter(None, (args.output, args.report)):
        check_writable(file)
    rows = read_questions(args.jsonl, args.limit, args.answers) if args.jsonl else [_single(args)]
    with _opened(args) as model:
        if args.jsonl:
            _answer_all(args, model, rows)
        else:
            _answer_one(args, model, rows[0])
    return 0


def _answer_one(args: argparse.Namespace, model: "AdaptiveDecoder", row: dict[str, Any]) -> None:
    """Write the answer as it comes; how fast it came goes to stderr."""
    from zotta_edge.runtime.generate.stops import before

    start, pieces = time.monotonic(), []
    answer = model.stream_tokens(_prompt(model, args, _question(row, Path())))
    for piece in before(answer, tuple(args.stop)):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print(flush=True)
    _write(args, [row | {"reply": "".join(pieces)}])
    numbers = model.status()
    seconds = time.monotonic() - start
    cost = f"{numbers['passes']} passes, {numbers['tokens']} tokens read, {seconds:.1f} s"
    print(cost, file=sys.stderr)


def _answer_all(
    args: argparse.Namespace, model: "AdaptiveDecoder", rows: list[dict[str, Any]]
) -> None:
    """Answer what can be; a bad question ends it, and keeps what was answered before."""
    from zotta_edge.runtime.interrupt import interrupts

    done: list[dict[str, Any]] = []
    start, ended, wrong = time.monotonic(), "", None
    with interrupts() as stop, Progress("answering", len(rows)) as progress:
        try:
            for row in rows:
                if stop.is_set():  # never inside an update
                    raise KeyboardInterrupt
                done.append(_answered(args, model, row))
                progress.advance(note=_score(done) if args.answers else "")
        except KeyboardInterrupt:
            ended = "  (interrupted)"
        except ZottaError as error:
            ended, wrong = f"  of {len(rows)}", error
    _write(args, done)
    if args.report:
        _report(args, model, done, time.monotonic() - start)
    if not args.output:
        for each in done:
            print(json.dumps(each, ensure_ascii=False))
    lines = [f"questions  {len(done)}{ended}"]
    lines += [f"right      {_score(done)}"] if args.answers else []
    asked, seconds = max(1, len(done)), time.monotonic() - start
    passes = model.status()["passes"] / asked
    lines.append(f"cost       {passes:.1f} passes and {seconds / asked:.2f} s a question")
    print("\n".join(lines), file=sys.stderr)
    if wrong:
        raise ZottaError(f"{args.jsonl}, question {len(done) + 1}: {wrong}") from wrong


def _report(
    args: argparse.Namespace, model: "AdaptiveDecoder", done: list[dict[str, Any]], seconds: float
) -> None:
    content = {
        "questions": len(done),
        "right": sum(each["right"] for each in done) if args.answers else None,
        "seconds": seconds,
        "status": model.status(),
        "settings": model.settings.to_dict(),
        "model": {"file": model.engine.path.name, "sha256": model.engine.fingerprint},
    }
    with replacing(args.report) as temporary:
        temporary.write_text(json.dumps(finite(content), indent=2) + "\n")


def _answered(
    args: argparse.Namespace, model: "AdaptiveDecoder", row: dict[str, Any]
) -> dict[str, Any]:
    from zotta_edge.runtime.generate.stops import before

    (answer,) = model.complete([_prompt(model, args, _question(row, args.jsonl.parent))])
    text = "".join(before([model.tokenizer.decode(answer.tokens)], tuple(args.stop)))
    scored = {"right": is_right(row, text)} if args.answers else {}
    return row | {"reply": text, "entropy": answer.entropy} | scored


def _score(done: list[dict[str, Any]]) -> str:
    right = sum(each["right"] for each in done)
    return f"{right} of {len(done)} ({right / max(1, len(done)):.1%})"


def _prompt(model: "AdaptiveDecoder", args: argparse.Namespace, question: "Question") -> Any:
    from zotta_edge.runtime.generate.prompts import Prompt, check_text

    if args.raw and question.image is not None:
        raise ZottaError("--raw leaves out the template, which says where an image goes")
    if args.raw:
        check_text(question.text, model.info)
        return Prompt(model.tokenizer.encode(question.text))
    return model.prompt(question)


def _question(row: dict[str, Any], folder: Path) -> "Question":
    from zotta_edge.runtime.generate.questions import Question
    from zotta_edge.runtime.io.images import read_image

    image = row.get("image")
    return Question(row["prompt"], read_image(folder / image) if image else None)


def _single(args: argparse.Namespace) -> dict[str, Any]:
    text = _stdin() if args.prompt == "-" else args.prompt
    return {"prompt": text} | ({"image": str(args.image)} if args.image else {})


def _stdin() -> str:
    """Not for ever, and whatever its encoding: what is no prompt is refused later."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin.read(_MOST)


def _write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if args.output:
        with replacing(args.output) as temporary:
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            # JSON can write half of a surrogate pair, which UTF-8 cannot: it stays written so.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator["AdaptiveDecoder"]:
    """Load the model, resume it from --state, and save it there at the end."""
    from zotta_edge.runtime.generate.model import AdaptiveDecoder
    from zotta_edge.runtime.state.lock import claim

    with claim(args.state) if args.state else nullcontext():
        model = AdaptiveDecoder.load(
            *(args.model or _embedded(), _settings(args), args.method),
            tokenizer=args.tokenizer,
            threads=args.threads,
            provider=args.provider,
        )
        if args.state and args.state.exists():
            model.load_state(args.state)
        yield model
        if args.state:
            model.save_state(args.state)


def _embedded() -> Path:
    from zotta_edge.models import embedded

    return embedded.VLM


def _settings(args: argparse.Namespace) -> "GenerationSettings":
    from zotta_edge.runtime.generate.settings import GenerationSettings

    given = {
        name: getattr(args, name)
        for name in ("max_tokens", "temperature", "seed")
        if getattr(args, name) is not None
    }
    return GenerationSettings().override(args.set).replace(given)


def _list_settings() -> int:
    from zotta_edge.options import listing
    from zotta_edge.runtime.generate.settings import by_methods

    print(listing(by_methods()))
    return 0
