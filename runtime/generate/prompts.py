"""Prompts of token ids, and a batch of them: padded on the left, with masks and positions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zotta_edge.decoder_format import DecoderInfo, Vision
from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prompt:
    """Token ids, and the rows that stand at its image tokens."""

    ids: tuple[int, ...]
    image_rows: Floats | None = None  # [image tokens, hidden]
    own: tuple[int, int] | None = None  # where the question stands in a template; None: all of it


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts as the graph takes them.

    >>> batch = Batch.of([Prompt((5, 6, 7)), Prompt((8,))], pad=0)
    >>> batch.ids.tolist(), batch.mask.tolist(), batch.positions.tolist()
    ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]], [[0, 1, 2], [0, 0, 0]])
    """

    ids: Ints  # [batch, sequence]
    mask: Ints  # [batch, sequence]
    positions: Ints  # [batch, sequence], or [3, batch, sequence]
    words: NDArray[np.bool_]  # [batch, sequence], the questions' own that others predict
    image_rows: Floats | None = None
    image_ends: tuple[int, ...] = ()  # how many rows belong to the prompts up to each

    @classmethod
    def of(
        cls,
        prompts: Sequence[Prompt],
        pad: int,
        vision: Vision | None = None,
        axes: int = 1,
    ) -> "Batch":
        length = max(len(prompt.ids) for prompt in prompts)
        ids = np.full((len(prompts), length), pad, np.int64)
        mask = np.zeros_like(ids)
        positions, words = np.zeros((3, *ids.shape), np.int64), np.zeros(ids.shape, bool)
        for row, prompt in enumerate(prompts):
            start = length - len(prompt.ids)
            ids[row, start:], mask[row, start:] = prompt.ids, 1
            first, last = prompt.own or (0, len(prompt.ids))
            words[row, start + max(first, 1) : start + last] = True  # nothing predicts the first
            seen = vision if axes == 3 else None  # else an image's tokens count on like words
            positions[:, row, start:] = token_positions(prompt.ids, seen)
        rows = [prompt.image_rows for prompt in prompts if prompt.image_rows is not None]
        joined = np.concatenate(rows) if rows else None
        counts = [0 if each.image_rows is None else len(each.image_rows) for each in prompts]
        ends = tuple(int(end) for end in np.cumsum(counts))
        if vision is not None:
            words &= ids != vision.image_token
        return cls(ids, mask, positions if axes == 3 else positions[0], words, joined, ends)

    def image_rows_of(self, row: int) -> Floats | None:
        """The rows of one prompt's images."""
        start, end = ((0, *self.image_ends)[row : row + 2]) if self.image_ends else (0, 0)
        return None if self.image_rows is None or start == end else self.image_rows[start:end]

    def __len__(self) -> int:
        return len(self.ids)


def token_positions(ids: Sequence[int], vision: Vision | None) -> Ints:
    """Time, row and column of each token, [3, sequence].

    Text counts on in all three. An image keeps one time, spreads over its rows and columns, and
    the text after it goes on behind the larger of both.
    """
    positions = np.empty((3, len(ids)), np.int64)
    now, place = 0, 0
    while place < len(ids):
        if vision is None or ids[place] != vision.image_token:
            positions[:, place] = now
            now, place = now + 1, place + 1
            continue
        rows, columns = np.divmod(np.arange(vision.tokens), vision.columns)
        whole = positions[:, place : place + vision.tokens]
        if whole.shape[1] < vision.tokens:
            raise ZottaError(f"an image in the prompt has fewer than {vision.tokens} tokens")
        whole[:] = now + np.stack([np.zeros_like(rows), rows, columns])
        now, place = now + max(vision.rows, vision.columns), place + vision.tokens
    return positions


def longest(info: DecoderInfo) -> int:
    """Characters that a text may have; few tokens have more than 32."""
    return 32 * info.shape.context


def check_text(text: str, info: DecoderInfo) -> None:
    """Refuse what is too long for the model before it is turned into tokens, which take 200 times
    the memory.
    """
    if len(text) > longest(info):
        raise ZottaError(
            f"the prompt has {len(text)} characters: at most {longest(info)} fit the context of "
            f"{info.shape.context} tokens, shorten it"
        )


def check_prompt(prompt: Prompt, info: DecoderInfo) -> None:
    """Refuse a prompt that the model cannot read."""
    shape, vision = info.shape, info.vision
    if not prompt.ids:
        raise ZottaError("the prompt is empty: give it at least one token")
    if min(prompt.ids) < 0 or max(prompt.ids) >= shape.vocabulary:
        raise ZottaError(f"a token of the prompt is outside the {shape.vocabulary} of the model")
    if len(prompt.ids) >= shape.context:
        raise ZottaError(
            f"the prompt has {len(prompt.ids)} tokens, which leaves none of the context of "
            f"{shape.context} for an answer: shorten it"
        )
    places = sum(token == vision.image_token for token in prompt.ids) if vision else 0
    rows = 0 if prompt.image_rows is None else len(prompt.image_rows)
    if places != rows:
        raise ZottaError(
            f"the prompt has {places} image tokens and {rows} rows of images: "
            "give --image where the question needs one, and only there"
        )
