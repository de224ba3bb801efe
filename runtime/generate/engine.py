"""A decoder's file in ONNX Runtime: one pass over tokens, with the cache and scales given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from zotta_edge.decoder_format import (
    FIRST,
    HIDDEN,
    IDS,
    IMAGE_ROWS,
    LOGITS,
    MASK,
    POSITIONS,
    SHIFT,
    DecoderInfo,
    from_metadata,
)
from zotta_edge.errors import NotFiniteError, ZottaError, one_line
from zotta_edge.files import sha256
from zotta_edge.format import Floats
from zotta_edge.runtime.generate.prompts import Ints
from zotta_edge.sessions import ORT_ERRORS, open_session

Cache = Mapping[str, Any]  # past_key_values.* -> OrtValue
Scales = Mapping[str, Floats]  # input name -> [n, 1, channels]


@dataclass(frozen=True, eq=False)
class Tokens:
    """What one pass reads: new tokens, and the mask over old and new ones."""

    ids: Ints  # [batch, sequence]
    mask: Ints  # [batch, past + sequence]
    positions: Ints  # as in `Batch`
    image_rows: Floats | None = None


@dataclass(frozen=True, eq=False)
class Pass:
    logits: Floats  # [rows, kept, vocabulary]
    hidden: Floats  # [rows, sequence, hidden]
    cache: Cache


class DecoderEngine:
    """One decoder's file, ready to run.

    `forward` keeps nothing between calls; what is learned are its arguments.
    """

    def __init__(self, session: ort.InferenceSession, info: DecoderInfo, path: Path) -> None:
        self._session, self.info, self.path = session, info, path
        self.passes, self.tokens = 0, 0  # of all rows
        self._optional = {each.name for each in session.get_overridable_initializers()}
        self._inputs = {each.name for each in session.get_inputs()}
        self._outputs = [each.name for each in session.get_outputs()]
        self._fingerprint = ""

    @classmethod
    def open(
        cls, path: str | Path, threads: int | None = None, provider: str | None = None
    ) -> "DecoderEngine":
        session = open_session(path, threads=threads, provider=provider)
        return cls(session, read_description(session, path), Path(path))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file, which states and caches belong to."""
        self._fingerprint = self._fingerprint or sha256(self.path)
        return self._fingerprint

    def positions_in(self, kilobytes: int) -> int:
        """How many tokens' logits take that much memory, and one at least."""
        return max(1, kilobytes * 256 // self.info.shape.vocabulary)

    def forward(
        self,
        tokens: Tokens,
        cache: Cache | None = None,
        scales: Scales | None = None,
        shift: Floats | None = None,
        first: int = 0,
    ) -> Pass:
        """Run the graph once.

        Parameters
        ----------
        tokens
            One prompt, or a batch of them.
        cache
            What an earlier pass returned; None: nothing came before.
        scales
            Other values for the norms' scales. Their first axis is 1, the batch, or, for a single
            prompt, any number: each row of scales then sees the same prompt.
        shift
            Added to the last hidden state, [n, 1, hidden].
        first
            The position from which on logits are wanted; -1: the last one alone.
        """
        scales = scales or {}
        rows = max([len(tokens.ids), *(len(values) for values in scales.values())])
        if rows > len(tokens.ids) and not self.info.broadcasts:
            tokens = repeated(tokens, rows)
        feeds: dict[str, Any] = {IDS: tokens.ids, MASK: tokens.mask, POSITIONS: tokens.positions}
        feeds |= scales
        feeds |= {SHIFT: shift} if shift is not None else {}
        feeds |= {IMAGE_ROWS: tokens.image_rows} if tokens.image_rows is not None else {}
        if FIRST in self._optional:
            feeds[FIRST] = np.array([first], np.int64)
        kept = {name: value for name, value in feeds.items() if self._takes(name)}
        values = {name: _as_tensor(value) for name, value in kept.items()}
        values |= cache if cache is not None else self._no_cache(len(tokens.ids), scales)
        self.passes += 1
        self.tokens += rows * tokens.ids.shape[1]
        return self._pass(values, first)

    def _pass(self, values: Mapping[str, Any], first: int) -> Pass:
        try:
            results = self._session.run_with_ort_values(self._outputs, values)
        except ORT_ERRORS as error:
            raise ZottaError(f"ONNX Runtime could not run the model: {one_line(error)}") from error
        named = dict(zip(self._outputs, results, strict=True))
        logits = named[LOGITS].numpy()
        if FIRST not in self._optional:
            logits = logits[:, first:]
        if not np.isfinite(logits).all():
            raise NotFiniteError("the model's logits are not finite for this prompt")
        cache = {
            name.replace("present", "past_key_values"): value
            for name, value in named.items()
            if name.startswith("present")
        }
        return Pass(logits, named[HIDDEN].numpy(), cache)

    def _takes(self, name: str) -> bool:
        return name in self._inputs or name in self._optional

    def _no_cache(self, batch: int, scales: Scales) -> dict[str, Any]:
        """Caches of no tokens; those behind a moved norm have a row for each row of scales."""
        shape = self.info.shape
        rows = [max(batch, self._rows_at(layer, scales)) for layer in range(shape.layers)]
        return {
            f"past_key_values.{layer}.{part}": _as_tensor(
                np.empty((rows[layer], shape.kv_heads, 0, shape.head_dim), np.float32)
            )
            for layer in range(shape.layers if self.info.cache else 0)
            for part in ("key", "value")
        }

    def _rows_at(self, layer: int, scales: Scales) -> int:
        before = [
            len(scales[norm.scale])
            for norm in self.info.norms
            if norm.scale in scales and norm.layer < layer + norm.attended
        ]
        return max(before, default=1)


def read_description(session: ort.InferenceSession, path: str | Path) -> DecoderInfo:
    """What an open file says about itself, checked against its graph."""
    try:
        info = from_metadata(session.get_modelmeta().custom_metadata_map, path)
    except UnicodeDecodeError as error:
        raise ZottaError(
            f"{path} is damaged, its description is no text: export it again"
        ) from error
    optional = {each.name for each in session.get_overridable_initializers()}
    inputs = {each.name for each in session.get_inputs()}
    outputs = {each.name for each in session.get_outputs()}
    missing = [norm.scale for norm in info.norms if norm.scale not in optional]
    missing += [name for name in (IDS,) if name not in inputs]
    missing += [name for name in (LOGITS, HIDDEN) if name not in outputs]
    if info.cache:
        missing += sorted(_cache_names(info, "past_key_values") - inputs)
        missing += sorted(_cache_names(info, "present") - outputs)
    if missing:
        raise ZottaError(f"{path} does not match its description: no {missing[0]}: export it again")
    given = {IDS, MASK, POSITIONS, *_cache_names(info, "past_key_values")}
    if strange := sorted(inputs - given):
        raise ZottaError(f"{path} is damaged, it wants {strange[0]}: export it again")
    return info


def _cache_names(info: DecoderInfo, prefix: str) -> set[str]:
    layers = range(info.shape.layers)
    return {f"{prefix}.{layer}.{part}" for layer in layers for part in ("key", "value")}


def repeated(tokens: Tokens, rows: int) -> Tokens:
    """The same prompt `rows` times, for graphs that cannot spread one over many scales."""
    if len(tokens.ids) != 1:
        raise ZottaError(f"{rows} rows of scales for {len(tokens.ids)} prompts")
    images = tokens.image_rows
    return Tokens(
        np.repeat(tokens.ids, rows, axis=0),
        np.repeat(tokens.mask, rows, axis=0),
        np.repeat(tokens.positions, rows, axis=-2),
        None if images is None else np.tile(images, (rows, 1)),
    )


def _as_tensor(values: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values))
