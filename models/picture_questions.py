"""Questions about pictures of handwritten digits, each with its answer.

A picture is 16 x 64 pixels with room for four digits; a question is a line of English, and so is
its answer. Training asks about one to three digits, and never some combinations of words ("the sum
of the odd digits"), so that there is something harder to ask later:

- `trained`: as in training, about other digits;
- `longer`: about four digits;
- `new`: combinations that training never asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Level = Literal["trained", "longer", "new"]
LEVELS: tuple[Level, ...] = ("trained", "longer", "new")

SIDE, PLACES = 16, 4  # pixels a digit has room for, and how many digits
_ZOOM = 1.6  # of a digit of 8 x 8 pixels
_TURN, _STRETCH, _SHIFT = 0.2, 0.15, 1.0  # at most, of each digit: radians, share, pixels
_COUNTS = (0.2, 0.4, 0.4)  # how often a picture has one, two and three digits
_ORDINALS = ("first", "second", "third", "last")


@dataclass(frozen=True)
class Form:
    """One thing to ask for: how it is worded, and what the answer is.

    `{of}` in a wording stands for nothing, "even " or "odd ".
    """

    kind: str
    wordings: tuple[str, ...]
    answer: Callable[[Sequence[int]], str]
    unseen: tuple[str, ...] = ()  # values of {of} that training never combines it with
    plain: bool = False  # whether it has no {of}


@dataclass(frozen=True)
class Question:
    """A picture, what is asked about it, and the right answer.

    >>> from zotta_edge.models import embedded
    >>> question = questions(embedded.digits(100), embedded.labels(100), 1, seed=0)[0]
    >>> question.picture.shape, question.text, question.shown, question.answer
    ((16, 64), 'add the digits.', (3, None, 2, 6), '11')
    """

    picture: Image  # uint8 [16, 64]
    shown: tuple[int | None, ...]  # the digit at each place, if any
    kind: str
    text: str
    answer: str


def _joined(digits: Sequence[int]) -> str:
    return "".join(map(str, digits)) or "none"


def _best(choose: Callable[[Sequence[int]], int]) -> Callable[[Sequence[int]], str]:
    return lambda digits: str(choose(digits)) if digits else "none"


def _at(ordinal: str) -> Callable[[Sequence[int]], str]:
    at = -1 if ordinal == "last" else _ORDINALS.index(ordinal)
    return lambda digits: _joined([digits[at]] if at < len(digits) else [])


def _total(digits: Sequence[int]) -> str:
    return str(sum(digits))


def _count(digits: Sequence[int]) -> str:
    return str(len(digits))


def _place(ordinal: str) -> Form:
    wordings = (f"what is the {ordinal} digit?", f"which digit is {ordinal}?")
    return Form("place", wordings, _at(ordinal), plain=True)


_SUM = ("what is the sum of the {of}digits?", "what do the {of}digits add up to?")
_LARGEST = ("which {of}digit is the largest?", "what is larger than all other {of}digits?")
_READ = ("read the {of}digits from left to right.", "what are the {of}digits?")
_BACK = ("read the {of}digits from right to left.",)

FORMS = (
    Form("sum", (*_SUM, "add the {of}digits."), _total, ("odd ",)),
    Form("count", ("how many {of}digits are there?", "count the {of}digits."), _count, ("odd ",)),
    Form("compare", _LARGEST, _best(max), ("even ",)),
    Form("compare", ("which {of}digit is the smallest?",), _best(min), ("odd ",)),
    Form("read", _READ, _joined, ("even ",)),
    Form("read", _BACK, lambda digits: _joined(digits[::-1]), ("odd ",)),
    *map(_place, _ORDINALS),
)
KINDS = ("sum", "count", "compare", "read", "place")
MATH = ("sum", "count", "compare")  # the paper tells math-targeted questions from general ones
_OF: dict[str, Callable[[int], bool]] = {
    "": lambda digit: True,
    "even ": lambda digit: digit % 2 == 0,
    "odd ": lambda digit: digit % 2 == 1,
}


def questions(
    digits: Image, labels: NDArray[np.int64], count: int, seed: int, level: Level = "trained"
) -> list[Question]:
    """Ask about pictures made of `digits` [N, 8, 8]; the same seed asks the same.

    Kinds come in turn, so that there are as many of each.
    """
    source = np.random.default_rng([abs(seed), int(seed < 0), LEVELS.index(level)])
    kinds = [kind for kind in KINDS if level != "new" or _forms(kind, level)]
    return [_question(digits, labels, source, kinds[at % len(kinds)], level) for at in range(count)]


def _forms(kind: str, level: Level) -> list[tuple[Form, str]]:
    """What may be asked: forms, each with its {of}."""
    return [
        (form, of)
        for form in FORMS
        if form.kind == kind
        for of in ([""] if form.plain else _OF)
        if (of in form.unseen) == (level == "new")
    ]


def _question(
    digits: Image, labels: NDArray[np.int64], source: np.random.Generator, kind: str, level: Level
) -> Question:
    count = PLACES if level == "longer" else 1 + source.choice(len(_COUNTS), p=_COUNTS)
    chosen = source.integers(len(digits), size=count)
    places = np.sort(source.permutation(PLACES)[:count])
    forms = _forms(kind, level)
    form, of = forms[source.integers(len(forms))]
    wording = form.wordings[source.integers(len(form.wordings))]
    values = [int(label) for label in labels[chosen] if _OF[of](int(label))]
    at = dict(zip(places.tolist(), labels[chosen].tolist(), strict=True))
    shown = tuple(at.get(place) for place in range(PLACES))
    picture = _picture(digits[chosen], places, source)
    return Question(picture, shown, kind, wording.format(of=of), form.answer(values))


def _picture(digits: Image, places: NDArray[np.int64], source: np.random.Generator) -> Image:
    picture = np.zeros((SIDE, SIDE * PLACES), np.uint8)
    for digit, place in zip(digits, places, strict=True):
        picture[:, place * SIDE : (place + 1) * SIDE] = _drawn(digit, source)
    return picture


def _drawn(digit: Image, source: np.random.Generator) -> Image:
    """One digit, shifted, turned and scaled by a little of its own."""
    turn, *stretch = source.uniform(-1, 1, 3) * (_TURN, _STRETCH, _STRETCH)
    cos, sin = np.cos(turn), np.sin(turn)
    matrix = _ZOOM * np.array([[cos, -sin], [sin, cos]]) * (1 + np.array(stretch))
    middle = np.array(digit.shape[::-1]) / 2 - 0.5
    shift = (SIDE - 1) / 2 + source.uniform(-_SHIFT, _SHIFT, 2) - matrix @ middle
    drawn: Image = cv2.warpAffine(digit, np.column_stack([matrix, shift]), (SIDE, SIDE))
    return drawn
