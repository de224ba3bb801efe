"""Export many broken copies of a model; exit with 1 if one of them ends in anything but an answer.

python benchmarks/trust/export_files.py model.onnx FOLDER COUNT
"""

import sys
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import onnx

from zotta_edge.errors import ZottaError
from zotta_edge.export.pipeline import ExportOptions, export_model


def flip_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Damage of a disk or a transfer: a few bytes changed, or the end lost."""
    data = np.frombuffer(content, np.uint8).copy()
    if rng.random() < 0.2:
        return data[: rng.integers(len(data))].tobytes()
    # Most of a file is weights; structure stands at both ends.
    places = np.concatenate([np.arange(len(data))[:4000], np.arange(len(data))[-4000:]])
    data[rng.choice(places, rng.integers(1, 8))] = rng.integers(0, 256)
    return data.tobytes()


def break_graph(content: bytes, rng: np.random.Generator) -> bytes:
    """Mistakes of an exporter: nodes, names, shapes and types that do not fit together."""
    model = onnx.load_model_from_string(content)
    graph = model.graph
    node = graph.node[rng.integers(len(graph.node))]
    tensor = graph.initializer[rng.integers(len(graph.initializer))]
    match rng.integers(9):
        case 0:
            graph.node.remove(node)
        case 1:
            node.op_type = str(rng.choice(["Relu", "Nonsense", "LayerNormalization", "Softmax"]))
        case 2 if node.input:
            node.input[rng.integers(len(node.input))] = str(rng.choice(["x", "y", "missing", ""]))
        case 3:
            graph.initializer.remove(tensor)
        case 4 if tensor.dims:
            tensor.dims[0] = int(rng.choice([0, 1, 2**31, -1]))
        case 5:
            tensor.data_type = int(rng.choice([0, 2, 7, 10, 11, 99]))
        case 6:
            shape = graph.input[0].type.tensor_type.shape
            shape.dim[rng.integers(len(shape.dim))].dim_value = int(rng.choice([0, 1, 7, 2**40]))
        case 7:
            model.opset_import[0].version = int(rng.choice([1, 10, 11, 13, 23, 99]))
        case 8:
            graph.node.add().CopyFrom(node)
    return model.SerializeToString()


def main() -> int:
    source, folder, count = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), int(sys.argv[3])
    rng = np.random.default_rng(0)
    path, output = folder / "mutant.onnx", folder / "exported.onnx"
    seen: Counter[str] = Counter()
    for index in range(count):
        mutant = (flip_bytes if index % 2 else break_graph)(source, rng)
        path.write_bytes(mutant)
        try:
            export_model(str(path), output, ExportOptions(mean=(0.5,), std=(0.5,)))
            seen["exported"] += 1
        except (ZottaError, MemoryError):
            seen["refused"] += 1
            if output.exists():
                print(f"mutant {index} was refused, yet a file was written")
                return 1
        except Exception:
            print(f"mutant {index}:", traceback.format_exc())
            return 1
        output.unlink(missing_ok=True)
    print(f"{count} mutants: {dict(seen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
