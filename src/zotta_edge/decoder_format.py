"""The model file of a decoder: what a generating ONNX file says about itself.

As in `format`, everything stands in `metadata_props` under keys that start with `zotta.`;
`zotta.kind` tells the two kinds of file apart.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.format import FORMAT_VERSION, Floats, Preprocessing, Recipe
from zotta_edge.format.damage import refuse_eyes, refuse_other_version, refusing_damage
from zotta_edge.format.kinds import check_kinds, check_numbers
from zotta_edge.format.packing import decode, encode
from zotta_edge.format.preprocessing import preprocessing_from_item

KIND = "decoder"
IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
LOGITS, HIDDEN = "logits", "hidden"
SHIFT = "hidden.shift"  # overridable, added to `hidden` before the head
FIRST = "logits.first"  # overridable, logits are computed from this position on
IMAGE_ROWS = "image_embeds"  # overridable, rows that replace image tokens

PROMPT_PLACE, IMAGE_PLACE = "{prompt}", "{image}"  # in a template
_FLAGS = ("cache", "broadcasts", "pads")  # of `DecoderInfo`
_LARGEST = 2**31
_LONGEST_TOKENIZER = 1 << 26  # bytes, unpacked


@dataclass(frozen=True)
class DecoderShape:
    """The sizes a runtime needs to feed the graph."""

    vocabulary: int
    hidden: int
    layers: int
    kv_heads: int
    head_dim: int
    context: int  # longest prompt and answer together, in tokens
    positions: int = 1  # numbers a token's position has; 3 in Qwen2.5-VL: time, row, column


@dataclass(frozen=True)
class ScaleNorm:
    """An RMSNorm whose scale is an input of the graph, `[n, 1, channels]`."""

    name: str
    channels: int
    layer: int  # the block it stands in, counted from 0
    attended: bool = False  # the block's attention reads it, and so does its cache

    @property
    def scale(self) -> str:
        return f"{self.name}.scale"


@dataclass(frozen=True)
class Prompting:
    """How a text becomes a prompt, and what ends an answer."""

    template: str = PROMPT_PLACE  # with {prompt}, and {image} where the model sees
    stop: tuple[int, ...] = ()  # tokens that end an answer
    pad: int = 0
    begin: tuple[int, ...] = ()  # tokens before every prompt
    unseeing: str = ""  # template of a question without an image; empty: the same without {image}


@dataclass(frozen=True)
class Vision:
    """The file beside this one that turns an image into rows of `image_embeds`."""

    image_token: int  # its place in a prompt
    rows: int  # of image tokens
    columns: int
    preprocessing: Preprocessing

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class DecoderInfo:
    """All that an adaptable decoder's file says about itself."""

    shape: DecoderShape
    norms: tuple[ScaleNorm, ...]
    affines: Mapping[str, Floats]  # input name -> source value [1, 1, channels]
    recipe: Recipe
    prompting: Prompting = field(default_factory=Prompting)
    tokenizer: str | None = None  # the text of a tokenizer.json
    vision: Vision | None = None
    checks: Mapping[str, float] = field(default_factory=dict)
    cache: bool = True  # whether the graph has past_key_values.*
    broadcasts: bool = True  # one prompt may meet many rows of scales
    pads: bool = True  # prompts of different lengths may share a batch


def to_metadata(info: DecoderInfo) -> dict[str, str]:
    """`metadata_props` of a decoder's file; the reverse of `from_metadata`."""
    flat = [np.ravel(info.affines[norm.scale]) for norm in info.norms]
    entries: dict[str, Any] = {
        "zotta.format": FORMAT_VERSION,
        "zotta.decoder": asdict(info.shape) | {name: getattr(info, name) for name in _FLAGS},
        "zotta.norms": [asdict(norm) for norm in info.norms],
        "zotta.recipe": asdict(info.recipe),
        "zotta.prompting": asdict(info.prompting),
        "zotta.checks": dict(info.checks),
    }
    if info.vision:
        entries["zotta.vision"] = asdict(info.vision)
    metadata = {key: json.dumps(value, separators=(",", ":")) for key, value in entries.items()}
    metadata["zotta.kind"] = KIND
    metadata["zotta.affines"] = encode(np.concatenate(flat))
    if info.tokenizer is not None:
        packed = zlib.compress(info.tokenizer.encode(), 9)
        metadata["zotta.tokenizer"] = base64.b64encode(packed).decode("ascii")
    return metadata


def from_metadata(metadata: Mapping[str, str], path: object = "the file") -> DecoderInfo:
    """Read `metadata_props`; refuse, with a reason, what this version does not understand."""
    refuse_eyes(metadata, path)
    if metadata.get("zotta.kind") != KIND:
        raise ZottaError(
            f"{path} is a classifier's file: use `zotta-edge adapt --model {path}`"
            if "zotta.format" in metadata
            else f"{path} was not made by zotta-edge: make an adaptable decoder with "
            f"`zotta-edge export {path} -o adaptable.onnx`"
        )
    refuse_other_version(metadata.get("zotta.format"), FORMAT_VERSION, path)
    with refusing_damage(path):
        info = _parse(metadata)
        _check(info)
    return info


def _parse(metadata: Mapping[str, str]) -> DecoderInfo:
    def entry(key: str) -> Any:
        return json.loads(metadata[f"zotta.{key}"])

    shape, prompting = entry("decoder"), entry("prompting")
    flags = {name: bool(shape.pop(name, True)) for name in _FLAGS}
    prompting |= {name: tuple(prompting[name]) for name in ("stop", "begin")}
    norms = tuple(ScaleNorm(**item) for item in entry("norms"))
    return DecoderInfo(
        shape=DecoderShape(**shape),
        norms=norms,
        affines=_affines(norms, metadata["zotta.affines"]),
        recipe=Recipe(**entry("recipe")),
        prompting=Prompting(**prompting),
        tokenizer=_tokenizer(metadata.get("zotta.tokenizer")),
        vision=_vision(entry("vision")) if "zotta.vision" in metadata else None,
        checks=entry("checks"),
        **flags,
    )


def _affines(norms: tuple[ScaleNorm, ...], text: str) -> dict[str, Floats]:
    flat = decode(text)
    ends = np.cumsum([norm.channels for norm in norms])
    if not norms or len(flat) != ends[-1]:
        raise ValueError(f"{len(flat)} scales for {len(norms)} norms")
    parts = np.split(flat, ends[:-1])
    return {norm.scale: part.reshape(1, 1, -1) for norm, part in zip(norms, parts, strict=True)}


def _tokenizer(text: str | None) -> str | None:
    if text is None:
        return None
    unpacker = zlib.decompressobj()
    return unpacker.decompress(base64.b64decode(text, validate=True), _LONGEST_TOKENIZER).decode()


def _vision(item: dict[str, Any]) -> Vision:
    return Vision(**(item | {"preprocessing": preprocessing_from_item(item["preprocessing"])}))


def _check(info: DecoderInfo) -> None:
    """Refuse values of the right kind that no decoder has."""
    seen = (info.vision, info.vision.preprocessing) if info.vision else ()
    check_kinds(info.shape, *info.norms, info.recipe, info.prompting, *seen)
    check_numbers(info.checks)
    sizes = asdict(info.shape).values()
    if any(type(size) is not int or not 0 < size < _LARGEST for size in sizes):
        raise ValueError(f"sizes {list(sizes)}")
    tokens = (*info.prompting.stop, *info.prompting.begin, info.prompting.pad)
    tokens += (info.vision.image_token,) if info.vision else ()
    if any(type(token) is not int or not 0 <= token < info.shape.vocabulary for token in tokens):
        raise ValueError(f"tokens {tokens} of {info.shape.vocabulary}")
    templates = (info.prompting.template, info.prompting.unseeing or PROMPT_PLACE)
    if not all(PROMPT_PLACE in template for template in templates):
        raise ValueError(f"a template without {PROMPT_PLACE}")
    if info.shape.positions not in (1, 3):
        raise ValueError(f"{info.shape.positions} positions a token")
