"""Weights from a `.pth` or `.safetensors` file into a module: exactly, or not at all."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zotta_edge.errors import ZottaError

_WRAPPERS = ("state_dict", "model", "net", "state", "model_state_dict", "model_state", "weights")
_PREFIXES = ("module.", "_orig_mod.")  # left by DataParallel and by torch.compile
_SHOWN = 4  # keys named in an error before the rest is only counted

State = dict[str, Tensor]


def read_checkpoint(path: Path) -> State:
    """The state dict in `path`, freed of the wrappers that training scripts put around it."""
    if not path.is_file():
        raise ZottaError(f"no weights at {path}: give a .pth or .safetensors file")
    content = _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)
    return _without_prefixes(_unwrap(content, path))


def load_weights(module: nn.Module, state: State, path: Path) -> None:
    """Copy `state` into `module`; every key and every shape must fit."""
    wanted = module.state_dict()
    problems = {
        "missing": sorted(name for name in wanted.keys() - state.keys() if not _counter(name)),
        "unexpected": sorted(state.keys() - wanted.keys()),
        "wrong shape": [
            f"{name} {_shape(state[name])} for {_shape(wanted[name])}"
            for name in wanted
            if name in state and state[name].shape != wanted[name].shape
        ],
    }
    mismatches = [f"{what}: {_listed(names)}" for what, names in problems.items() if names]
    if mismatches:
        raise ZottaError(f"{path} does not fit the architecture; {'; '.join(mismatches)}")
    module.load_state_dict(state, strict=False)


def _counter(name: str) -> bool:
    """BatchNorm's step counter, absent from old checkpoints, plays no part in inference."""
    return name.endswith(".num_batches_tracked")


def _safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ZottaError(f"{path} is no readable .safetensors file: {_reason(error)}") from error


def _pickled(path: Path) -> Any:
    """`weights_only`: a checkpoint from elsewhere may hold tensors, never code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ZottaError(
            f"{path} holds more than tensors, or is no checkpoint (it is read with "
            "weights_only=True): save its state_dict alone, or as .safetensors"
        ) from error
    except Exception as error:  # damaged pickles raise whatever their broken opcodes lead to
        raise ZottaError(f"{path} is no readable checkpoint: {_reason(error)}") from error


def _unwrap(content: Any, path: Path) -> State:
    while isinstance(content, Mapping):
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return dict(content)
        inner = next((content[key] for key in _WRAPPERS if key in content), None)
        if inner is None:
            break
        content = inner
    raise ZottaError(
        f"{path} holds no state dict (a mapping of names to tensors), neither at the top nor "
        f"under {', '.join(_WRAPPERS)}"
    )


def _without_prefixes(state: State) -> State:
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape) or "scalar"


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
