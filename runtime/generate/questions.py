"""From a question to a prompt: the model's template, its tokens, and the rows of its image."""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from numpy.typing import NDArray

from zotta_edge.decoder_format import IMAGE_PLACE, PROMPT_PLACE, DecoderInfo
from zotta_edge.errors import ZottaError
from zotta_edge.runtime.generate.eyes import Eyes
from zotta_edge.runtime.generate.prompts import Prompt, check_text
from zotta_edge.runtime.generate.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Question:
    """A text, and the image it is about where there is one: RGB uint8 of any size."""

    text: str
    image: NDArray[Any] | None = None


class Asking:
    """What a model needs to read questions.

    Parameters
    ----------
    info
        What the model's file says of itself.
    tokenizer
        Turns texts into tokens.
    eyes
        What turns images into rows; None for a model that reads text alone.
    """

    def __init__(self, info: DecoderInfo, tokenizer: Tokenizer, eyes: Eyes | None = None) -> None:
        self._info, self._tokenizer, self._eyes = info, tokenizer, eyes

    def prompt(self, question: Question) -> Prompt:
        """Tokens of a question in the model's template, and the rows of its image."""
        check_text(question.text, self._info)
        prompting, rows = self._info.prompting, self._rows(question.image)
        seeing, begin = rows is not None, len(prompting.begin)
        template = prompting.template if seeing else prompting.unseeing or prompting.template
        ids = self._ids(template, question.text, seeing)
        before, _, after = template.partition(PROMPT_PLACE)
        head, tail = self._ids(before, "", seeing), self._ids(after, "", seeing)[begin:]
        # Tokens may join across the template's edges: what is still its own tells where they are.
        start, end = _shared(ids, head), len(ids) - _shared(ids[::-1], tail[::-1])
        return Prompt(ids, rows, (start, max(start, end)))

    def _rows(self, image: NDArray[Any] | None) -> Any:
        if image is None:
            return None
        if self._eyes is None:
            raise ZottaError("the model reads text alone: leave the image out")
        if IMAGE_PLACE not in self._info.prompting.template:
            raise ZottaError(f"the model's template has no {IMAGE_PLACE}: export it again")
        (rows,) = self._eyes.rows([image])
        return rows

    def _ids(self, template: str, text: str, seeing: bool) -> tuple[int, ...]:
        """Tokens of a template with a text in it; the image's stand where the template says."""
        encode, vision = self._tokenizer.encode, self._info.vision
        parts = [part.replace(PROMPT_PLACE, text) for part in template.split(IMAGE_PLACE)]
        if not (seeing and vision and len(parts) == 2):
            return encode("".join(parts))
        before, after = parts
        rest = encode(after)[len(self._info.prompting.begin) :]
        return (*encode(before), *(vision.image_token,) * vision.tokens, *rest)


def _shared(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return len(commonprefix([list(ids), list(others)]))
