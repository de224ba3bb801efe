"""What moving the tower's rows back to the source's mean does to questions about pictures.

    python benchmarks/picture_rows.py --questions 200 --seed 1

On development digits: drifted pictures, and pictures as clean as in training but of other content.
The stream's mean is a running one over images, and what sampling explains of its distance from the
source's is left out. Prints a Markdown table.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from picture_methods import Device
from picture_questions import DEVELOPMENT, Condition, stream

from zotta_edge.format import Floats
from zotta_edge.models import embedded
from zotta_edge.models.picture_questions import Question, questions
from zotta_edge.runtime.generate.questions import Question as Asked
from zotta_edge.runtime.watch.statistics import Doubles, shrunk

BATCH, _KEPT, _SOURCE = 8, 300, 400  # questions; digits for development; pictures of the source
CLEAN = (Condition("clean"), Condition("four digits", level="longer"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    args = parser.parse_args(argv)
    device = Device("none", {})
    means = rows_of(device, _asked(CLEAN[0], _SOURCE, seed=77)).mean(axis=1, dtype=np.float64)
    print("| stream | distance | as they are | moved back |\n| --- | --- | --- | --- |")
    for condition in (*DEVELOPMENT, *CLEAN):
        asked = _asked(condition, args.questions, args.seed)
        rows = rows_of(device, asked)
        distance = (rows.mean(axis=(0, 1)) - means.mean(axis=0)) / means.std(axis=0)
        shares = (right(device, asked, rows), right(device, asked, moved_back(rows, means)))
        cells = [f"{np.sqrt(np.square(distance).mean()):.2f}", *(f"{100 * x:.1f}" for x in shares)]
        print(f"| {condition.name} | {' | '.join(cells)} |", flush=True)
    return 0


def _asked(condition: Condition, count: int, seed: int) -> list[Question]:
    if condition in DEVELOPMENT:
        return stream(condition, count, seed)
    digits, labels = embedded.digits(_KEPT), embedded.labels(_KEPT)
    return questions(digits, labels, count, seed, condition.level)


def rows_of(device: Device, asked: Sequence[Question]) -> Floats:
    """What the tower makes of each picture, [questions, rows, hidden]."""
    prompts = [device.model.prompt(Asked(one.text, one.picture)) for one in asked]
    return np.stack([one.image_rows for one in prompts if one.image_rows is not None])


def moved_back(rows: Floats, source: Doubles) -> Floats:
    """Each batch less the difference of the mean so far from the source's."""
    moved = []
    for start in range(0, len(rows), BATCH):
        seen = rows[: start + BATCH]
        shift = seen.mean(axis=(0, 1), dtype=np.float64) - source.mean(axis=0)
        shift = shrunk(shift, source.var(axis=0) / len(seen))
        moved.append(rows[start : start + BATCH] - shift.astype(np.float32))
    return np.concatenate(moved)


def right(device: Device, asked: Sequence[Question], rows: Floats) -> float:
    """Share of right answers with these rows in the pictures' places."""
    model, found = device.model, list[bool]()
    for start in range(0, len(asked), BATCH):
        some = asked[start : start + BATCH]
        prompts = [
            replace(model.prompt(Asked(one.text, one.picture)), image_rows=own)
            for one, own in zip(some, rows[start : start + BATCH], strict=True)
        ]
        answers = [model.tokenizer.decode(each.tokens) for each in model.complete(prompts)]
        found += [answer == one.answer for answer, one in zip(answers, some, strict=True)]
    return float(np.mean(found))


if __name__ == "__main__":
    raise SystemExit(main())
