"""ONNX Runtime sessions: one set of options wherever a graph runs, and one-line errors."""

import contextlib
import mmap
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from zotta_edge.errors import ZottaError
from zotta_edge.format import EMBEDDING, IMAGE, LOGITS, ModelInfo, Preprocessing, from_metadata

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

# What ONNX Runtime raises; the classes share no base of their own.
ORT_ERRORS: tuple[type[Exception], ...] = (
    UnicodeDecodeError,  # when its message quotes a damaged name
    *(
        kind
        for kind in vars(ort_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
_SILENT = 4  # what ONNX Runtime logs it also raises; its warnings name every overridable tensor
_LOCATION = b"location"  # the key of an entry that every tensor stored elsewhere must have
_TOPOLOGY = Path("/sys/devices/system/cpu")
_POWER_OF_TWO = 0  # how the arena grows
_UNSET = -1


def open_session(
    model: str | Path | bytes,
    *,
    threads: int | None = None,
    provider: str | None = None,
    optimize: bool = True,
) -> ort.InferenceSession:
    """Load a model file, or the bytes of one.

    `threads` None: one for each physical core. `optimize` False loads faster and runs slower.
    """
    name = "the model" if isinstance(model, bytes) else str(model)
    providers = _providers(provider or "cpu")
    if has_external_data(model):
        raise ZottaError(
            f"{name} keeps its weights in other files, which zotta-edge does not read: "
            "export it again into a single file"
        )
    source = model if isinstance(model, bytes) else str(model)
    try:
        session = ort.InferenceSession(source, _options(threads, optimize), providers=providers)
    except ORT_ERRORS as error:
        raise ZottaError(f"{name} {_reason(str(error))}") from error
    if providers[0] not in session.get_providers():
        raise ZottaError(
            f"provider {provider} is installed but does not start on this machine: "
            f"check its driver and libraries, or use --provider cpu"
        )
    return session


def read_info(path: str | Path) -> ModelInfo:
    """What an adaptable model file says about itself, checked against its graph."""
    return session_info(open_session(path, optimize=False), path)


def session_info(session: ort.InferenceSession, path: str | Path) -> ModelInfo:
    """`read_info` of a file that is already open."""
    info = description(session, path)
    affines = {name: value.shape[1:] for name, value in info.affines.items()}
    outputs: dict[str, tuple[int | None, ...]] = {LOGITS: (info.classes,), EMBEDDING: (None,)}
    outputs |= {layer.feature: (layer.channels,) for layer in info.layers}
    try:
        _check("input", {IMAGE: image_axes(info.preprocessing)}, session.get_inputs())
        _check("overridable input", affines, session.get_overridable_initializers())
        _check("output", outputs, session.get_outputs())
    except ZottaError as error:
        raise ZottaError(
            f"{path} does not match its description: {error}: export it again"
        ) from None
    return info


def description(session: ort.InferenceSession, path: str | Path) -> ModelInfo:
    """What an open file says about itself, unchecked."""
    try:
        metadata = session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError as error:
        raise ZottaError(
            f"{path} is damaged, its description is no text: export it again"
        ) from error
    return from_metadata(metadata, path)


def image_axes(pixels: Preprocessing) -> tuple[int, int, int]:
    """The axes of one image as the graph takes it."""
    if pixels.layout == "NCHW":
        return pixels.channels, pixels.height, pixels.width
    return pixels.height, pixels.width, pixels.channels


def available_providers() -> list[str]:
    """Short names of the execution providers that this onnxruntime was built with."""
    present = ort.get_available_providers()
    return [short for short, name in PROVIDERS.items() if name in present]


def has_external_data(model: str | Path | bytes) -> bool:
    """Whether a tensor is stored outside the file; ONNX Runtime would follow it anywhere.

    A file without the word costs neither memory nor the onnx package.
    """
    if isinstance(model, bytes):
        return _LOCATION in model and _points_elsewhere(model)
    path = Path(model)
    if not path.is_file():
        raise ZottaError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise ZottaError(f"{path} is empty: copy or export it again")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_LOCATION) >= 0 and _points_elsewhere(content[:])


def _points_elsewhere(content: bytes) -> bool:
    """Looked up in the parsed file: there are many ways to write the same bytes' length."""
    from zotta_edge.runtime.engine.cut import names_other_files

    return names_other_files(content)


def _providers(short: str) -> list[str]:
    available = available_providers()
    if short not in available:
        raise ZottaError(
            f"provider {short} is not available: this onnxruntime has {', '.join(available)}"
        )
    # Nodes that an accelerator does not know fall back to the CPU.
    return [PROVIDERS[short]] if short == "cpu" else [PROVIDERS[short], PROVIDERS["cpu"]]


def _options(threads: int | None, optimize: bool) -> ort.SessionOptions:
    if threads is not None and threads < 1:
        raise ZottaError(f"threads must be at least 1, not {threads}")
    options = ort.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = threads or physical_cores()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # All sessions share one arena, so that stem and cone do not each keep their peak, and plan no
    # memory pattern. Peak of DeiT-Ti INT8, batch 64: no arena 780 MB, an arena with patterns
    # 528 MB, without them 326 MB; stem and cone with an arena each 442 MB, with one 323 MB.
    options.enable_mem_pattern = False
    _register_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Shape nodes first: a tensor that is asked for its shape alone is not kept until the end.
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


@cache
def _register_arena() -> None:
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    unlimited = ort.OrtArenaCfg(0, _POWER_OF_TWO, _UNSET, _UNSET)
    with contextlib.suppress(*ORT_ERRORS):  # another library registered its own: that one is used
        ort.create_and_register_allocator(memory, unlimited)


@cache
def physical_cores() -> int:
    """Cores this process may run on, hyper-threads counted once; 0 (ORT decides) if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return 0
    files = [_TOPOLOGY / f"cpu{n}/topology/thread_siblings_list" for n in os.sched_getaffinity(0)]
    try:
        return len({file.read_text() for file in files})
    except OSError:
        return 0


def _reason(message: str) -> str:
    """Why ONNX Runtime refused a file, and what to do, from its own many lines."""
    if "Protobuf parsing failed" in message or "No graph was found" in message:
        return "is not an ONNX model, or is damaged: copy or export it again"
    if "IR version" in message or "ValidateOpset" in message or "No Op registered" in message:
        return (
            f"needs a newer onnxruntime than {ort.__version__}: upgrade onnxruntime, "
            "or export it again with an older opset"
        )
    detail = " ".join(message.rsplit(" : ", 1)[-1].split())
    return f"cannot be run by onnxruntime {ort.__version__} ({detail[:200]}): export it again"


def _check(
    what: str, expected: Mapping[str, tuple[int | None, ...]], present: Sequence[Any]
) -> None:
    """Each expected tensor is there, float32, its first axis free and the others as expected."""
    by_name = {tensor.name: tensor for tensor in present}
    for name, axes in expected.items():
        if name not in by_name:
            raise ZottaError(f"no {what} {name}")
        tensor = by_name[name]
        if tensor.type != "tensor(float)":
            raise ZottaError(f"{what} {name} is {tensor.type}, not float32")
        if not _fits(tensor.shape, axes):
            wanted = ", ".join("?" if axis is None else str(axis) for axis in axes)
            found = ", ".join(str(axis) for axis in tensor.shape)
            raise ZottaError(f"{what} {name} is [{found}], not [any, {wanted}]")


def _fits(shape: Sequence[int | str | None], axes: Sequence[int | None]) -> bool:
    """A symbolic axis may turn out to be anything, a number must be the expected one."""
    return (
        len(shape) == len(axes) + 1
        and not isinstance(shape[0], int)
        and all(
            not isinstance(found, int) or axis in (None, found)
            for found, axis in zip(shape[1:], axes, strict=True)
        )
    )
