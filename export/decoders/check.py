"""Whether an adaptable decoder is still the model it was made from, and knows its own tokens."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from zotta_edge.decoder_format import LOGITS, DecoderInfo
from zotta_edge.errors import ZottaError
from zotta_edge.runtime.generate.engine import DecoderEngine, Tokens
from zotta_edge.runtime.generate.tokenizer import Tokenizer
from zotta_edge.sessions import ORT_ERRORS, open_session

TOLERANCE = 1e-3  # largest logit difference, relative to the largest logit
_TOKENS = 7
_MOVE = 0.1


def check_tokens(info: DecoderInfo, source: object) -> None:
    """Refuse, before anything is written, what could never be read or said."""
    prompting, vocabulary = info.prompting, info.shape.vocabulary
    if (last := max((*prompting.stop, *prompting.begin, prompting.pad))) >= vocabulary:
        raise ZottaError(f"{source}: token {last} is outside the {vocabulary} of the model")
    if info.tokenizer is not None:
        Tokenizer.of(info)


def check_runs(file: Path) -> None:
    """Refuse a file that no device could run, before it is put in place."""
    engine = DecoderEngine.open(file)
    engine.forward(_prompt(engine))


def check_same(original: onnx.ModelProto, engine: DecoderEngine) -> dict[str, float]:
    """Compare the logits of a prompt with those of the source; every scale must matter."""
    tokens = _prompt(engine)
    logits = engine.forward(tokens).logits
    expected = _source_logits(original, engine, tokens)
    difference = float(np.abs(logits - expected).max() / np.abs(expected).max())
    if not difference <= TOLERANCE:
        raise ZottaError(f"the adaptable decoder differs from its source by {difference:.2g}")
    for name, value in engine.info.affines.items():
        if np.array_equal(engine.forward(tokens, scales={name: value + _MOVE}).logits, logits):
            raise ZottaError(f"{name} has no effect on the logits")
    return {"source_difference": difference}


def broadcasts(engine: DecoderEngine) -> bool:
    """Whether one prompt can meet two rows of scales without being repeated."""
    tokens = _prompt(engine)
    rows = {
        name: np.concatenate([value, value + _MOVE]) for name, value in engine.info.affines.items()
    }
    own = [{name: value[n : n + 1] for name, value in rows.items()} for n in range(2)]
    alone = [engine.forward(tokens, scales=each).logits[0] for each in own]
    engine.info = replace(engine.info, broadcasts=True)
    try:
        together = engine.forward(tokens, scales=rows).logits
    except ZottaError:
        return False
    return together.shape == (2, *alone[0].shape) and np.allclose(together, alone, atol=1e-3)


def _prompt(engine: DecoderEngine) -> Tokens:
    shape = engine.info.shape
    ids = np.random.default_rng(0).integers(0, shape.vocabulary, (1, _TOKENS))
    places = np.arange(_TOKENS)[None]
    positions = places if shape.positions == 1 else np.stack([places] * shape.positions)
    return Tokens(ids, np.ones_like(ids), positions)


def _source_logits(original: onnx.ModelProto, engine: DecoderEngine, tokens: Tokens) -> Any:
    session = open_session(original.SerializeToString())
    shape = engine.info.shape
    feeds: Mapping[str, Any] = {
        "input_ids": tokens.ids,
        "attention_mask": tokens.mask,
        "position_ids": tokens.positions,
        "use_cache_branch": np.array([True]),
    }
    known = {each.name for each in session.get_inputs()}
    empty = np.empty((1, shape.kv_heads, 0, shape.head_dim), np.float32)
    given = {name: feeds.get(name, empty) for name in known}
    try:
        return session.run([LOGITS], given)[0]
    except ORT_ERRORS as error:
        raise ZottaError(
            f"the source does not run: {' '.join(str(error).split())[:200]}"
        ) from error
