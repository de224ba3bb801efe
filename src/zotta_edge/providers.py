"""Execution providers of ONNX Runtime by their short names. A new one is a line here."""

from collections.abc import Mapping

import onnxruntime as ort

from zotta_edge.errors import ZottaError

PROVIDERS: Mapping[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "directml": "DmlExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "nnapi": "NnapiExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "acl": "ACLExecutionProvider",
    "cann": "CANNExecutionProvider",
    "rknpu": "RknpuExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}


def available_providers() -> list[str]:
    """Short names of the execution providers that this onnxruntime was built with."""
    present = ort.get_available_providers()
    return [short for short, name in PROVIDERS.items() if name in present]


def with_fallback(short: str) -> list[str]:
    """What to hand to ONNX Runtime; nodes that an accelerator does not know run on the CPU.

    >>> with_fallback("cpu")
    ['CPUExecutionProvider']
    """
    available = available_providers()
    if short not in available:
        raise ZottaError(
            f"provider {short} is not available: this onnxruntime has {', '.join(available)}"
        )
    return [PROVIDERS[short]] if short == "cpu" else [PROVIDERS[short], PROVIDERS["cpu"]]
