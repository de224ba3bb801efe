"""A JSONL file of questions: each line an object with "prompt", perhaps "image" and "answer"."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zotta_edge.errors import ZottaError
from zotta_edge.files import read_text


def read_questions(path: Path, limit: int | None, answers: bool) -> list[dict[str, Any]]:
    """All of them, refused before the first one is answered; `answers`: each must have its own."""
    lines = read_text(path, encoding="utf-8-sig").split("\n")
    named = {f"{path}:{n}": line for n, line in enumerate(lines, 1) if line.strip()}
    rows = [_row(line, place, path.parent, answers) for place, line in named.items()]
    if not rows:
        raise ZottaError(f"{path} holds no questions")
    return rows[:limit]


def is_right(row: Mapping[str, Any], reply: str) -> bool:
    """Whether one of the accepted answers stands in the reply, as whole words.

    >>> is_right({"answer": ["four", 4]}, "It is 4."), is_right({"answer": 4}, "It is 14.")
    (True, False)
    """
    accepted = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    words = f" {_words(reply)} "
    return any(f" {_words(str(answer))} " in words for answer in accepted)


def _row(line: str, place: str, folder: Path, answers: bool) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ZottaError(f"{place} is no JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise ZottaError(f'{place}: expected an object with "prompt"')
    if answers and "answer" not in row:
        raise ZottaError(f"{place}: the question has no answer, which --answers needs")
    image = row.get("image")
    if image and not (isinstance(image, str) and (folder / image).is_file()):
        raise ZottaError(f"{place}: there is no image {image!r} beside the file")
    return row


def _words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
