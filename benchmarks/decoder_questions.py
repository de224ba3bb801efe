"""Questions with short answers, made from templates, and the ways they drift.

Development and reported questions share no word that is asked for: constants are chosen on the
first half of every list, results are reported on the second.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty",
]  # fmt: skip
CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Cuba": "Havana",
    "Norway": "Oslo", "Poland": "Warsaw", "Kenya": "Nairobi", "Austria": "Vienna",
    "Sweden": "Stockholm", "Iran": "Tehran", "Peru": "Lima", "Italy": "Rome", "Greece": "Athens",
    "Germany": "Berlin", "Russia": "Moscow", "China": "Beijing", "Ireland": "Dublin",
    "Portugal": "Lisbon", "Hungary": "Budapest", "Thailand": "Bangkok", "Finland": "Helsinki",
    "Iraq": "Baghdad", "Chile": "Santiago",
}  # fmt: skip
OPPOSITES = {
    "big": "small", "hot": "cold", "old": "young new", "fast": "slow", "happy": "sad unhappy",
    "wet": "dry", "full": "empty", "early": "late", "strong": "weak", "open": "closed close shut",
    "left": "right", "north": "south", "high": "low", "light": "dark heavy", "rich": "poor",
    "hard": "soft easy", "long": "short", "day": "night", "up": "down", "true": "false",
    "loud": "quiet soft silent", "clean": "dirty", "win": "lose", "deep": "shallow",
}  # fmt: skip
_STORIES = (
    ("Tim", "Lily", "Max", "Mia", "Ben", "Sue", "Tom", "Anna", "Sam", "Lucy"),
    ("dog", "cat", "bird", "bear", "girl", "boy", "rabbit", "frog", "mouse", "fish"),
    ("red ball", "big box", "toy car", "blue kite", "shiny stone", "doll", "book", "flower"),
    ("park", "garden", "forest", "house", "kitchen", "yard", "school", "pond"),
)


@dataclass(frozen=True)
class Asked:
    kind: str
    text: str
    accepted: tuple[str, ...]  # any of these words in an answer is right


def questions(count: int, shift: str, reported: bool, seed: int = 0) -> list[Asked]:
    """`count` questions of all kinds in turn, as the shift puts them."""
    rng = np.random.default_rng([seed, reported])
    if shift == "stories":
        return [_opening(rng) for _ in range(count)]
    shifts = list(SHIFTS) if shift == "mixed" else [shift]
    makers = (_capital, _opposite, _larger, _sum)
    asked = []
    for place in range(count):
        now = shifts[place % len(shifts)]
        each = makers[place % 4](rng, reported, now == "words")
        asked.append((each, now))
    return [Asked(each.kind, SHIFTS[now](each.text, rng), each.accepted) for each, now in asked]


def is_right(asked: Asked, answer: str) -> bool:
    """Whether the first of the asked numbers, or any accepted word, is in the answer.

    A number must stand alone: 13 is not in 130.
    """
    words = "".join(c if c.isalnum() else " " for c in answer.lower()).split()
    if asked.kind == "larger":  # both numbers are often repeated: the first one counts
        mentioned = [word for word in words if word.isdigit() or word in NUMBERS]
        return bool(mentioned) and mentioned[0] in asked.accepted
    return any(word in words for word in asked.accepted)


def _half(names: dict[str, str], rng: Generator, reported: bool) -> tuple[str, str]:
    own = (
        list(names.items())[len(names) // 2 :]
        if reported
        else list(names.items())[: len(names) // 2]
    )
    return own[rng.integers(len(own))]


def _capital(rng: Generator, reported: bool, words: bool) -> Asked:
    country, city = _half(CAPITALS, rng, reported)
    return Asked("capital", f"What is the capital of {country}?", (city.lower(),))


def _opposite(rng: Generator, reported: bool, words: bool) -> Asked:
    word, others = _half(OPPOSITES, rng, reported)
    return Asked("opposite", f"What is the opposite of {word}?", tuple(others.split()))


def _larger(rng: Generator, reported: bool, words: bool) -> Asked:
    low, high = sorted(rng.choice(np.arange(2, 21), 2, replace=False).tolist())
    pair = (high, low) if rng.random() < 0.5 else (low, high)
    first, second = (_said(number, words) for number in pair)
    return Asked("larger", f"Which is larger, {first} or {second}?", (str(high), NUMBERS[high]))


def _sum(rng: Generator, reported: bool, words: bool) -> Asked:
    a, b = (int(number) for number in rng.integers(1, 10, 2))
    accepted = (str(a + b), NUMBERS[a + b])
    return Asked("sum", f"What is {_said(a, words)} plus {_said(b, words)}?", accepted)


def _opening(rng: Generator) -> Asked:
    """How a story for small children begins; nothing is asked."""
    name, animal, thing, place = (words[rng.integers(len(words))] for words in _STORIES)
    first = f"Once upon a time, there was a little {animal} named {name}."
    second = (
        f"{name} loved to play with a {thing} in the {place}.",
        f"One day, {name} went to the {place} and saw a {thing}.",
        f"{name} was sad because the {thing} was lost in the {place}.",
    )
    return Asked("story", f"{first} {second[rng.integers(len(second))]}", ())


def _said(number: int, words: bool) -> str:
    return NUMBERS[number] if words else str(number)


def _misspelt(text: str, rng: Generator) -> str:
    """Two neighbouring letters inside a third of the longer words change places."""
    words = []
    for word in text.split():
        if len(word) > 3 and word.isalpha() and rng.random() < 0.34:
            place = int(rng.integers(1, len(word) - 2))
            word = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
        words.append(word)
    return " ".join(words)


def _chatty(text: str, rng: Generator) -> str:
    opening = ("yo quick one lol", "hey so my kid wants 2 know,", "ok ok tell me pls")
    return f"{opening[rng.integers(len(opening))]} {text.lower().rstrip('?')} thx"


def _formal(text: str, rng: Generator) -> str:
    return f"Kindly tell me, good sir: {text[0].lower()}{text[1:]} I remain in thy debt."


SHIFTS: dict[str, Callable[[str, Generator], str]] = {
    "plain": lambda text, rng: text,
    "words": lambda text, rng: text,
    "spelling": _misspelt,
    "chat": _chatty,
    "archaic": _formal,
}
STREAMS = (*SHIFTS, "mixed", "stories")
