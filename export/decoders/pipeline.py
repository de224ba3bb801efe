"""A whole export of a decoder: weights -> fp32 graph -> 8 bits -> checked file."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from zotta_edge.decoder_format import (
    DecoderInfo,
    DecoderShape,
    Prompting,
    ScaleNorm,
    Vision,
    to_metadata,
)
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.check import check_runs, check_tokens
from zotta_edge.export.decoders.four_bits import SCHEME as FOUR_BIT_SCHEME
from zotta_edge.export.decoders.graph import POST_ATTENTION, decoder_graph
from zotta_edge.export.decoders.quantize import SCHEME, quantize_blocks
from zotta_edge.export.quantize.target import describe_machine, detect_target
from zotta_edge.files import check_writable, replacing
from zotta_edge.format import Floats, Precision, Recipe
from zotta_edge.models.decoder import Decoder, check_decoder

Say = Callable[[str], None]
PRECISIONS = ("int4", "int8", "fp32")
_LARGEST = 2**31 - 1  # bytes protobuf can hold


@dataclass(frozen=True)
class DecoderOptions:
    """How a decoder is exported.

    Parameters
    ----------
    precision
        "int8", "fp32", or "int4": weights that come in 4 bits stay as they are, others get 8.
    norms
        Regular expression for the norms whose scales become inputs.
    context
        Longest prompt and answer; None: as the model was trained.
    """

    precision: Precision = "int8"
    norms: str = POST_ATTENTION
    context: int | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ZottaError(
                f"precision {self.precision} is unknown for decoders: {', '.join(PRECISIONS)}"
            )
        try:
            re.compile(self.norms)
        except re.error as error:
            raise ZottaError(
                f"--layers {self.norms!r} is not a regular expression: {error}"
            ) from error


def export_decoder(
    decoder: Decoder,
    output: str | Path,
    options: DecoderOptions | None = None,
    vision: tuple[onnx.ModelProto, Vision] | None = None,
    say: Say = lambda message: None,
) -> DecoderInfo:
    """Write an adaptable decoder's file, and the vision file beside it if there is one.

    Parameters
    ----------
    decoder
        Weights, from `models.llama2c`, `models.gguf_file` or `export.decoders.from_torch`.
    output
        The .onnx to write; the eyes go beside it as `.vision.onnx`.
    options
        Precision and norms.
    vision
        The graph that makes rows of images, and its description.
    say
        Told what is being done.
    """
    options, output = options or DecoderOptions(), Path(output)
    if options.precision == "int4" and not decoder.four_bits:
        raise ZottaError(f"{decoder.name} has no 4-bit weights to keep: export it as int8 or fp32")
    check_decoder(decoder)
    for file in (output, vision_path(output)) if vision else (output,):
        check_writable(file)
    image_token = vision[1].image_token if vision else None
    model, norms = decoder_graph(decoder, options.norms, image_token)
    info = _described(decoder, norms, options, vision[1] if vision else None)
    check_tokens(info, decoder.name)
    say(f"{len(norms)} norms with {sum(norm.channels for norm in norms)} scales are adaptable")
    if options.precision != "fp32":
        say(f"quantizing to {options.precision}")
        kept = decoder.four_bits if options.precision == "int4" else {}
        model = quantize_blocks(model, kept)
        scheme = FOUR_BIT_SCHEME if kept else SCHEME
        recipe = replace(info.recipe, precision=options.precision, scheme=scheme)
        info = replace(info, recipe=recipe)
    write_decoder(model, info, output)
    if vision:
        eyes = vision[0] if options.precision == "fp32" else quantize_blocks(vision[0])
        onnx.helper.set_model_props(eyes, {"zotta.format": "1", "zotta.kind": "vision"})
        _write(eyes, vision_path(output))
    return info


def write_decoder(model: onnx.ModelProto, info: DecoderInfo, output: Path) -> None:
    """Write `model` with `info` as its metadata."""
    onnx.helper.set_model_props(model, to_metadata(info))
    _write(model, output, check_runs)


def vision_path(decoder: str | Path) -> Path:
    """Where the eyes of a decoder's file lie.

    >>> vision_path("models/vlm_int8.onnx").name
    'vlm_int8.vision.onnx'
    """
    return Path(decoder).with_suffix(".vision.onnx")


def _write(
    model: onnx.ModelProto, output: Path, check: Callable[[Path], None] = lambda file: None
) -> None:
    model.producer_name = "zotta-edge"
    if model.ByteSize() > _LARGEST:
        raise ZottaError(
            f"the model has {model.ByteSize() / 2**30:.1f} GB, one ONNX file holds 2: "
            "export it with --precision int8, or start from a file with 4-bit weights"
        )
    with replacing(output) as temporary:
        temporary.write_bytes(model.SerializeToString())
        check(temporary)


def _described(
    decoder: Decoder, norms: tuple[ScaleNorm, ...], options: DecoderOptions, vision: Vision | None
) -> DecoderInfo:
    sizes = decoder.sizes
    positions = 3 if decoder.rotary.axes else 1
    shape = DecoderShape(
        *(sizes.vocabulary, sizes.hidden, sizes.layers, sizes.kv_heads, sizes.head_dim),
        context=min(options.context or sizes.context, sizes.context),
        positions=positions,
    )
    recipe = Recipe("fp32", "as it came", detect_target(), describe_machine())
    return DecoderInfo(
        shape=shape,
        norms=norms,
        affines={norm.scale: _scale(decoder, norm) for norm in norms},
        recipe=recipe,
        prompting=decoder.prompting or Prompting(),
        tokenizer=decoder.tokenizer,
        vision=vision,
    )


def _scale(decoder: Decoder, norm: ScaleNorm) -> Floats:
    values = np.asarray(decoder.weights[f"{norm.name}.weight"], np.float32)
    return values.reshape(1, 1, -1)
