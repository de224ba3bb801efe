"""Load many broken copies of an adaptable model; exit with 1 if one ends in anything but an answer.

python benchmarks/trust/model_files.py FOLDER COUNT [SEED]
python benchmarks/trust/model_files.py --generate FOLDER COUNT [SEED]      # of a decoder
"""

import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from export_files import break_graph, flip_bytes

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.generate.methods.registry import METHODS as DECODERS
from zotta_edge.runtime.generate.model import AdaptiveDecoder
from zotta_edge.runtime.generate.questions import Question
from zotta_edge.runtime.generate.settings import GenerationSettings

METHODS = (None, "zotta", "none", "neo", "t3a", "zoa")


def change_metadata(content: bytes, rng: np.random.Generator) -> bytes:
    """A description that is not the graph's, or no description at all."""
    model = onnx.load_model_from_string(content)
    entry = model.metadata_props[rng.integers(len(model.metadata_props))]
    at = int(rng.integers(max(1, len(entry.value))))
    match rng.integers(5):
        case 0:
            entry.value = entry.value[:at]
        case 1:
            digit = str(
                rng.choice(["-1", "0", "1e9", "null", "[]", "{}", '"x"', "NaN", "9" * 5000])
            )
            entry.value = entry.value[:at] + digit + entry.value[at + 1 :]
        case 2:
            entry.value = str(rng.choice(["", "0", "null", "[]", "{}", "NaN", "[" * 5000]))
        case 3:
            places = [place for place, one in enumerate(entry.value) if one.isdigit()]
            place = int(rng.choice(places)) if places else at
            entry.value = entry.value[:place] + str(rng.integers(10)) + entry.value[place + 1 :]
        case 4:
            model.metadata_props.remove(entry)
    return bytes(model.SerializeToString())


KINDS: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    flip_bytes,
    break_graph,
    change_metadata,
)


def outcome(path: Path, method: str | None) -> str:
    """`refused`, or what a model says that loads."""
    try:
        model = AdaptiveModel.load(path, method=method, threads=1)
        pixels = model.info.preprocessing
        size = (4, pixels.height, pixels.width, pixels.channels)
        result = model.predict(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8))
    except (ZottaError, MemoryError):
        return "refused"
    assert np.isfinite(result.logits).all()
    return "answered"


def decoder_outcome(path: Path, method: str | None) -> str:
    """`outcome` of a decoder's file: it is asked a question in words."""
    settings = GenerationSettings(max_tokens=4, surprise=0.0)
    try:
        model = AdaptiveDecoder.load(path, settings, method or "none", threads=1)
        (reply,) = model.answer([Question("how many digits?")])
    except (ZottaError, MemoryError):
        return "refused"
    assert np.isfinite(reply.entropy)
    return "answered"


def main() -> int:
    arguments = [each for each in sys.argv[1:] if each != "--generate"]
    folder, count, seed = Path(arguments[0]), int(arguments[1]), int((*arguments, 0)[2])
    rng, seen = np.random.default_rng(seed), Counter[str]()
    files, methods, asked = [embedded.MODEL, embedded.RESNET], METHODS, outcome
    if "--generate" in sys.argv:
        files, methods, asked = [embedded.VLM], (None, *DECODERS), decoder_outcome
        shutil.copy(embedded.VLM.with_suffix(".vision.onnx"), folder / "mutant.vision.onnx")
    sources = [file.read_bytes() for file in files]
    failed = 0
    for index in range(count):
        kind, source = KINDS[index % len(KINDS)], sources[index // len(KINDS) % len(sources)]
        path = folder / "mutant.onnx"
        path.write_bytes(kind(source, rng))
        try:
            seen[f"{kind.__name__} {asked(path, methods[index % len(methods)])}"] += 1
        except Exception:
            failed += 1
            print(f"mutant {index} ({kind.__name__}):", traceback.format_exc(limit=-3))
    print(f"{count} mutants, {failed} with a raw exception: {dict(seen)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
