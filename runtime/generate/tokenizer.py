"""Texts to tokens and back, as the model file's tokenizer.json says."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zotta_edge.decoder_format import DecoderInfo
from zotta_edge.errors import ZottaError, quoting
from zotta_edge.files import read_text

_CUT = "\ufffd"  # what a character reads as while some of its bytes are missing


class Tokenizer:
    """A tokenizer of the `tokenizers` package.

    Parameters
    ----------
    text
        The content of a tokenizer.json.
    begin
        Tokens before every prompt.
    """

    def __init__(self, text: str, begin: tuple[int, ...] = ()) -> None:
        self._begin = begin
        self._tokenizer = _parsed(text)

    @classmethod
    def of(cls, info: DecoderInfo, path: Path | None = None) -> "Tokenizer":
        """The file's own, or one from a tokenizer.json beside it."""
        text = read_text(path, f"the tokenizer {path}") if path else info.tokenizer
        if text is None:
            raise ZottaError(
                "the model file holds no tokenizer: give its tokenizer.json with --tokenizer"
            )
        tokenizer = cls(text, info.prompting.begin)
        if len(tokenizer) > info.shape.vocabulary:
            raise ZottaError(
                f"the tokenizer has {len(tokenizer)} tokens, the model {info.shape.vocabulary}: "
                "it is another model's"
            )
        return tokenizer

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids, those that begin every prompt included."""
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair, or a shell's odd bytes
            raise ZottaError("the prompt is no text: it holds bytes that are not UTF-8") from error
        with quoting("the tokenizer cannot read the prompt, give another one with --tokenizer"):
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return (*self._begin, *ids)

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class Stream:
    """The text of tokens that come one by one; a character comes out when it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._told = 0  # characters

    def push(self, token: int) -> str:
        """The text that a token adds."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(_CUT):
            return ""
        new, self._told = text[self._told :], max(self._told, len(text))
        return new


def _parsed(text: str) -> Any:
    try:
        from tokenizers import Tokenizer as Parsed
    except ImportError as error:
        raise ZottaError(
            "texts need the tokenizers package: `pip install 'zotta-edge[generate]'`"
        ) from error
    with quoting("unknown tokenizer, give a tokenizer.json"):
        return Parsed.from_str(text)
