"""Make the embedded vision-language model's two files from its weights.

    python -m zotta_edge.models.export_vlm benchmarks/weights/digits_vlm.safetensors --output FOLDER

`digits_vlm_int8.onnx` reads words, `digits_vlm_int8.vision.onnx` beside it pictures.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from torch import Tensor, nn

from zotta_edge.decoder_format import IMAGE_PLACE, IMAGE_ROWS, PROMPT_PLACE, Prompting, Vision
from zotta_edge.export.decoders.from_torch import decoder_of
from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder
from zotta_edge.export.sources.torch_source import to_onnx
from zotta_edge.format import LOGITS, Precision, Preprocessing
from zotta_edge.models import embedded
from zotta_edge.models.checkpoint import load_weights, read_checkpoint
from zotta_edge.models.picture_questions import PLACES, SIDE
from zotta_edge.models.train_vlm import END_TOKEN, IMAGE_TOKEN, prompt, tokenizer
from zotta_edge.models.vlm import Tower, VisionLanguageModel, VLMShape

NAME = "digits_vlm"
PIXELS = Preprocessing(SIDE, SIDE * PLACES, (0.5,), (0.5,))


class Flat(nn.Module):
    """All patches of a picture in one row."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, image: Tensor) -> Tensor:
        return self.tower(image).flatten(1)  # type: ignore[no-any-return]


def load(weights: Path) -> VisionLanguageModel:
    """The trained model."""
    model = VisionLanguageModel(VLMShape(tokenizer().get_vocab_size()))
    state = {name: value.float() for name, value in read_checkpoint(weights).items()}
    state["decoder.lm_head.weight"] = state["decoder.model.embed_tokens.weight"]
    load_weights(model, state, weights)
    return model.eval()


def export(model: VisionLanguageModel, output: Path, precision: Precision = "int8") -> None:
    """Write the file for words, and the one for pictures beside it."""
    words = tokenizer()
    template = IMAGE_PLACE + prompt(PROMPT_PLACE)
    prompting = Prompting(template, stop=(END_TOKEN,), pad=END_TOKEN)
    decoder = decoder_of(model.decoder, prompting, words.to_str())
    options = DecoderOptions(precision=precision)
    export_decoder(decoder, output, options, vision=_vision(model, IMAGE_TOKEN))


def _vision(model: VisionLanguageModel, token: int) -> tuple[onnx.ModelProto, Vision]:
    graph = to_onnx(Flat(model.tower), NAME, (PIXELS.height, PIXELS.width))
    width = model.tower.proj.out_features
    shape = numpy_helper.from_array(np.array([-1, width], np.int64), "zotta.rows")
    graph.graph.initializer.append(shape)
    graph.graph.node.append(helper.make_node("Reshape", [LOGITS, shape.name], [IMAGE_ROWS]))
    rows = helper.make_tensor_value_info(IMAGE_ROWS, onnx.TensorProto.FLOAT, ["tokens", width])
    graph.graph.output[0].CopyFrom(rows)
    patch = model.tower.patch_embed.proj.stride[0]
    return graph, Vision(token, PIXELS.height // patch, PIXELS.width // patch, PIXELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("weights", type=Path, metavar="WEIGHTS")
    parser.add_argument("--output", type=Path, metavar="FOLDER", default=Path(embedded.__path__[0]))
    given = parser.parse_args()
    export(load(given.weights), given.output / f"{NAME}_int8.onnx")


if __name__ == "__main__":
    main()
