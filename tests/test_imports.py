"""The hot path on the device is NumPy and ONNX Runtime; everything else waits until it is used."""

import re
import subprocess
import sys
from pathlib import Path

import onnx

FORBIDDEN = ("torch", "sklearn", "cv2", "onnx", "safetensors", "scipy", "matplotlib", "onnxscript")

PREDICT = """
import sys
import numpy as np
from zotta_edge import AdaptiveModel, Settings
for method in ("zotta", None):  # None: channel moments, for a network with BatchNorm
    model = AdaptiveModel.load("model.onnx", Settings(always=True, pairs=1), method)
    model.predict(np.load("i.npy"))  # the source: no filter is tried
    assert model.status()["images"] == 16
print(*sorted(name for name in sys.modules if "." not in name))
"""


def python(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_predicting_imports_nothing_else(residual_net: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(residual_net, tmp_path / "net.onnx")
    statistics = ["--mean", "0.5", "--std", "0.5"]
    python("-m", "zotta_edge", "export", "net.onnx", "-o", "model.onnx", *statistics,
           folder=tmp_path)  # fmt: skip
    make_images = "import numpy as np; np.save('i.npy', np.random.default_rng(0).integers("
    python("-c", make_images + "0, 256, (16, 16, 16, 3), dtype=np.uint8))", folder=tmp_path)
    python("-m", "zotta_edge", "calibrate", "model.onnx", "--source", "i.npy", "--samples", "16",
           "--layers", "1", folder=tmp_path)  # fmt: skip
    python("-c", PREDICT, folder=tmp_path)  # the first start cuts the graph, with onnx
    loaded = set(python("-c", PREDICT, folder=tmp_path).stdout.split())
    assert {"numpy", "onnxruntime", "zotta_edge"} <= loaded
    assert not loaded & set(FORBIDDEN)


def test_importing_the_package_costs_nothing() -> None:
    timings = python("-X", "importtime", "-c", "import zotta_edge").stderr
    seconds = [int(found[1]) / 1e6 for found in re.finditer(r"\| +(\d+) \| zotta_edge\n", timings)]
    assert seconds
    assert seconds[0] < 0.3
    assert "numpy" not in timings
    assert "onnxruntime" not in timings
