"""ONNX Runtime sessions: one set of options wherever a graph runs, and one-line errors."""

import contextlib
import mmap
import os
from functools import cache
from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from zotta_edge.errors import ZottaError
from zotta_edge.providers import with_fallback

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
_SOURCES = (".gguf", ".bin", ".safetensors", ".pt", ".pth")  # what export takes
_MOST_THREADS = 1024  # each takes a stack: of 100,000 the machine would not come back


def open_session(
    model: str | Path | bytes,
    *,
    threads: int | None = None,
    provider: str | None = None,
    optimize: bool = True,
) -> ort.InferenceSession:
    """Load a model file, or the bytes of one.

    Parameters
    ----------
    model
        A path, or a serialized model. Weights in other files are refused.
    threads
        None: one for each physical core.
    provider
        Short name, as in `zotta_edge.providers`; None is the CPU.
    optimize
        False loads faster and runs slower.

    Raises
    ------
    ZottaError
        For anything that ONNX Runtime cannot load, and a provider that does not start.

    >>> from importlib.resources import files
    >>> model = files("zotta_edge.models.embedded") / "digits_vit_int8.onnx"
    >>> open_session(str(model)).get_inputs()[0].name
    'image'
    """
    name = "the model" if isinstance(model, bytes) else str(model)
    providers = with_fallback(provider or "cpu")
    if has_external_data(model):
        raise ZottaError(
            f"{name} keeps its weights in other files, which zotta-edge does not read: "
            "export it again into a single file"
        )
    source = model if isinstance(model, bytes) else _text(model)
    try:
        session = ort.InferenceSession(
            source,
            _options(threads, optimize),
            providers=providers,
            enable_fallback=len(providers) > 1,  # the CPU alone: it would print, and try again
        )
    except ORT_ERRORS as error:
        raise ZottaError(f"{name} {_reason(str(error))}") from error
    if providers[0] not in session.get_providers():
        raise ZottaError(
            f"provider {provider} is installed but does not start on this machine: "
            f"check its driver and libraries, or use --provider cpu"
        )
    return session


def _text(path: str | Path) -> str:
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError as error:
        raise ZottaError(
            f"the path {path} is not UTF-8, and onnxruntime reads no other: rename it"
        ) from error


def has_external_data(model: str | Path | bytes) -> bool:
    """Whether a tensor is stored outside the file; ONNX Runtime would follow it anywhere.

    A file without the word costs neither memory nor the onnx package.
    """
    if isinstance(model, bytes):
        return _LOCATION in model and _points_elsewhere(model)
    path = Path(model)
    if not path.exists():
        raise ZottaError(f"{path} does not exist")
    if path.suffix in _SOURCES or (path / "config.json").exists():
        raise ZottaError(f"{path} is no ONNX file: make one of it with `zotta-edge export` first")
    if not path.is_file():
        raise ZottaError(f"{path} is not a file")
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise ZottaError(f"{path} is empty: copy or export it again")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_LOCATION) >= 0 and _points_elsewhere(content[:])


def _points_elsewhere(content: bytes) -> bool:
    """Looked up in the parsed file: there are many ways to write the same bytes' length."""
    from zotta_edge.external_data import names_other_files

    return names_other_files(content)


def _options(threads: int | None, optimize: bool) -> ort.SessionOptions:
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise ZottaError(f"threads must be from 1 to {_MOST_THREADS}, not {threads}")
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


def usable_cores() -> int:
    """Logical cores this process may run on."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


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
