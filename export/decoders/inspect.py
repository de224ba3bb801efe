"""A decoder's file as JSON and as text; of another exporter's, whether it can be adapted."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zotta_edge.decoder_format import DecoderInfo, Vision
from zotta_edge.export.decoders.from_onnx import adaptable_onnx
from zotta_edge.export.decoders.graph import POST_ATTENTION
from zotta_edge.export.decoders.pipeline import vision_path


def describe_decoder(path: Path, info: DecoderInfo) -> dict[str, Any]:
    """Everything a decoder's file says about itself but the numbers of its scales."""
    return {
        "kind": "decoder",
        "precision": info.recipe.precision,
        "recipe": vars(info.recipe),
        "shape": vars(info.shape),
        "prompting": vars(info.prompting),
        "tokenizer": info.tokenizer is not None,
        "vision": info.vision and _vision(path, info.vision),
        "checks": dict(info.checks),
        "norms": [vars(norm) for norm in info.norms],
        "scales": sum(norm.channels for norm in info.norms),
        "cache": info.cache,
        "broadcasts": info.broadcasts,
        "pads": info.pads,
    }


def _vision(path: Path, vision: Vision) -> dict[str, Any]:
    eyes = vision_path(path)
    return asdict(vision) | {"file": eyes.name, "there": eyes.exists()}


def explain_decoder(path: Path) -> int:
    """How many norms of another exporter's decoder can be adapted; refused if there is none."""
    return len(adaptable_onnx(path, POST_ATTENTION).norms)


def decoder_summary(described: dict[str, Any]) -> str:
    """The file in one paragraph."""
    shape, recipe = described["shape"], described["recipe"]
    size = f"{described['bytes'] / 1e6:.2f} MB"
    lines = [
        f"{described['file']}: {recipe['precision']} decoder, {size}, {shape['layers']} blocks of "
        f"{shape['hidden']}, {shape['vocabulary']} tokens",
        f"input     context of {shape['context']} tokens, "
        + ("tokenizer in the file" if described["tokenizer"] else "no tokenizer: --tokenizer FILE"),
        f"template  {json.dumps(described['prompting']['template'], ensure_ascii=False)}",
        *([_seen(described["vision"])] if described["vision"] else []),
        f"recipe    {recipe['scheme']}, for {recipe['target']}; checked on {recipe['machine']}",
        f"batches   {_batches(described)}",
        f"adapts    {len(described['norms'])} norms with {described['scales']} scales "
        "(zotta, perplexity), the last hidden state (slot)",
    ]
    return "\n".join(lines)


def norms_table(described: dict[str, Any]) -> str:
    """One line a norm."""
    norms = described["norms"]
    width = max(len(norm["name"]) for norm in norms)
    rows = [f"block  {'norm':<{width}}  scales"]
    rows += [f"{n['layer']:>5}  {n['name']:<{width}}  {n['channels']:>6}" for n in norms]
    return "\n".join(rows)


def _seen(vision: dict[str, Any]) -> str:
    p = vision["preprocessing"]
    there = "" if vision["there"] else ", which is missing: copy it beside this file"
    return (
        f"image     any size, resized to {p['width']} x {p['height']}, {p['interpolation']}; "
        f"{vision['rows']} x {vision['columns']} tokens by {vision['file']}{there}"
    )


def _batches(described: dict[str, Any]) -> str:
    cache = "a cache" if described["cache"] else "no cache: every token reads the prompt again"
    lengths = "prompts of any lengths" if described["pads"] else "prompts of one length"
    return f"{lengths}, {cache}" + (
        "; perturbed passes share the prompt" if described["broadcasts"] else ""
    )
