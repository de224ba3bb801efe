"""What a decoder can be exported from, and the export of each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from zotta_edge.decoder_format import DecoderInfo, Prompting, Vision
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders import check
from zotta_edge.export.decoders.beside import stop_tokens
from zotta_edge.export.decoders.from_onnx import Found, adaptable_onnx, is_decoder
from zotta_edge.export.decoders.pipeline import (
    DecoderOptions,
    Say,
    export_decoder,
    write_decoder,
)
from zotta_edge.export.decoders.quantize import SCHEME, quantize_blocks
from zotta_edge.export.quantize.found import found_precision, found_scheme
from zotta_edge.export.quantize.target import describe_machine, detect_target
from zotta_edge.export.sources.obstacles import one_line_errors
from zotta_edge.files import check_file, check_writable, read_text, replacing
from zotta_edge.format import Preprocessing, Recipe
from zotta_edge.models.decoder import Decoder
from zotta_edge.models.gguf_file import read_gguf
from zotta_edge.models.llama2c import read_llama2c
from zotta_edge.runtime.generate.engine import DecoderEngine

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)  # what Qwen2.5-VL's images are normalised with
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def names_decoder(source: str) -> bool:
    """Whether SOURCE is GGUF, llama2.c, a folder of transformers, or ONNX that reads tokens."""
    path = Path(source)
    if path.suffix in (".gguf", ".bin"):
        return True
    if path.is_dir():
        return (path / "config.json").exists()
    return path.suffix == ".onnx" and path.is_file() and is_decoder(path)


def export_any_decoder(
    source: str,
    output: Path,
    options: DecoderOptions,
    size: tuple[int, int] | None = None,
    say: Say = lambda message: None,
) -> DecoderInfo:
    """Export whatever `names_decoder` recognises; `size` is the images' where the model sees."""
    path = Path(source)
    if not path.exists():
        raise ZottaError(f"{path} does not exist")
    check_file(path)
    if path.suffix == ".onnx":
        with one_line_errors(source):
            return _from_onnx(path, output, options, say)
    if path.is_dir():
        return _from_folder(path, output, options, size, say)
    return export_decoder(_read(path), output, options, say=say)


def _read(path: Path) -> Decoder:
    if path.suffix == ".gguf":
        return read_gguf(path)
    tokenizer = path.with_name("tokenizer.bin")
    return read_llama2c(path, tokenizer if tokenizer.exists() else None)


def _from_folder(
    folder: Path, output: Path, options: DecoderOptions, size: tuple[int, int] | None, say: Say
) -> DecoderInfo:
    from zotta_edge.export.decoders.from_torch import decoder_of, load_folder, read_prompting
    from zotta_edge.export.decoders.vision import Eyes, vision_graph

    module: Any = load_folder(folder)
    prompting, tokenizer = read_prompting(folder, module)
    decoder = decoder_of(module, prompting, tokenizer)
    if not hasattr(module.config, "vision_config"):
        return export_decoder(decoder, output, options, say=say)
    if size is None:
        raise ZottaError(f"{folder} sees: give the size of its images, such as --size 448")
    eyes = Eyes.of(module, *size)
    pixels = Preprocessing(*size, _CLIP_MEAN, _CLIP_STD, interpolation="bicubic")
    vision = Vision(module.config.image_token_id, *eyes.places, pixels)
    return export_decoder(decoder, output, options, (vision_graph(eyes), vision), say)


def _from_onnx(path: Path, output: Path, options: DecoderOptions, say: Say) -> DecoderInfo:
    check_writable(output)
    found = adaptable_onnx(path, options.norms)
    say(
        f"{len(found.norms)} norms with {sum(n.channels for n in found.norms)} scales are adaptable"
    )
    scheme = found_scheme(found.model.graph.node)
    info = _described(path, found, scheme)
    check.check_tokens(info, path.parent)
    engine = _opened(found.model, info, output)
    info = replace(info, checks=check.check_same(onnx.load(path), engine))
    info = replace(info, broadcasts=check.broadcasts(engine))
    model = found.model
    if scheme:
        say(f"the model is already quantized ({scheme}): its integers are kept")
    elif options.precision == "int4":
        raise ZottaError(f"{path} has no 4-bit weights to keep: export it as int8 or fp32")
    elif options.precision == "int8":
        say("quantizing to int8")
        model = quantize_blocks(model)
        info = replace(info, recipe=replace(info.recipe, precision="int8", scheme=SCHEME))
    write_decoder(model, info, output)
    return info


def _described(path: Path, found: Found, scheme: str | None) -> DecoderInfo:
    """What the file and those beside it say of the decoder; whether it spreads is tried later."""
    precision = found_precision(found.model.graph.node)
    recipe = Recipe(precision, scheme or "as it came", detect_target(), describe_machine())
    stop, pad = stop_tokens(path.parent)
    tokenizer = path.with_name("tokenizer.json")
    text = read_text(tokenizer) if tokenizer.exists() else None
    return DecoderInfo(
        *(found.shape, found.norms, found.affines, recipe, Prompting(stop=stop, pad=pad), text),
        cache=found.cache,
        broadcasts=False,
        pads=found.pads,
    )


def _opened(model: onnx.ModelProto, info: DecoderInfo, output: Path) -> DecoderEngine:
    """Run the graph as the device will, from a file that is gone afterwards."""
    from zotta_edge.decoder_format import to_metadata

    onnx.helper.set_model_props(model, to_metadata(info))
    trial = output.with_name(f".{output.name}.trial")
    try:
        with replacing(trial) as temporary:
            temporary.write_bytes(model.SerializeToString())
        return DecoderEngine.open(trial)
    finally:
        trial.unlink(missing_ok=True)
