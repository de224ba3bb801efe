"""Torch modules as fp32 ONNX models. The only module of `export` that imports torch."""

import ast
import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE, LOGITS, Preprocessing
from zotta_edge.models.checkpoint import load_weights, read_checkpoint
from zotta_edge.models.registry import architecture
from zotta_edge.sessions import open_session

OPSET = 21  # the first that has a native GroupNormalization with one scale a channel
TOLERANCE = 1e-4  # largest logit difference of the ONNX model from the module
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class Built:
    module: nn.Module
    name: str
    preprocessing: Preprocessing | None = None


def from_registry(name: str, weights: Path | None, random_weights: bool) -> Built:
    """An architecture of `zotta_edge.models`; the number of classes follows the checkpoint."""
    wanted = architecture(name)
    if weights is None:
        if not random_weights:
            raise ZottaError(
                f"{name} needs weights: give --weights FILE (.pth or .safetensors), or "
                "--random-weights to try the export alone"
            )
        return Built(randomized(wanted.build(wanted.classes)), name, wanted.preprocessing)
    state = read_checkpoint(weights)
    head = state.get(f"{wanted.head}.weight")
    module = wanted.build(wanted.classes if head is None else head.shape[0])
    load_weights(module, state, weights)
    return Built(module, name, wanted.preprocessing)


def from_factory(source: str, weights: Path | None, random_weights: bool) -> Built:
    """`package.module:factory`; the module keeps its own weights where none are given."""
    path, _, attribute = source.partition(":")
    factory = getattr(_imported(path, source), attribute, None)
    if not callable(factory):
        raise ZottaError(f"{path} has no function {attribute!r}: give package.module:factory")
    try:
        module = factory()
    except Exception as error:
        raise ZottaError(f"{source} failed: {_reason(error)}") from error
    if not isinstance(module, nn.Module):
        raise ZottaError(f"{source} returned {type(module).__name__}, not a torch.nn.Module")
    return Built(_weighted(module, weights, random_weights), attribute)


def from_timm(name: str, weights: Path | None, random_weights: bool) -> Built:
    """A timm model with timm's weights and preprocessing."""
    try:
        import timm
    except ImportError as error:
        raise ZottaError(
            f"timm:{name} needs timm, which cannot be imported ({_reason(error)}): "
            "`pip install timm`, or name an architecture of zotta-edge and give --weights"
        ) from error
    try:
        module = timm.create_model(name, pretrained=weights is None and not random_weights)
        config = timm.data.resolve_data_config({}, model=module)
    except Exception as error:
        raise ZottaError(f"timm cannot build {name}: {_reason(error)}") from error
    return Built(_weighted(module, weights, random_weights), name, _timm_preprocessing(config))


def randomized(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter seeded values of its own, norm affines included.

    Equal parameters, as fresh norms have them, would hide a mix-up between two layers.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(0.1 * noise + (1 if name.endswith("weight") else 0))
    return module


def to_onnx(module: nn.Module, name: str, size: tuple[int, int]) -> onnx.ModelProto:
    """Export for inference, any batch size, norms kept as they are; checked against the module."""
    module = module.float().cpu().eval()
    example = torch.randn(2, _channels(module), *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        try:
            output = module(example)
        except Exception as error:
            shape = "x".join(str(length) for length in example.shape[1:])
            raise ZottaError(f"{name} cannot run on a {shape} image: {_reason(error)}") from error
        expected = _logits_of(output)
        if expected is None or expected.ndim != 2:
            raise ZottaError(f"{name} is no classifier: its output is not [batch, classes]")
        if expected is not output:
            module = _LogitsAlone(module)
        try:
            model = _exported(module, example)
        except Exception as error:
            raise ZottaError(
                f"torch cannot export {name} to ONNX ({_reason(error)}): export it to .onnx "
                "yourself and give that file"
            ) from error
    _compare(model, name, example.numpy(), expected.numpy())
    return model


class _LogitsAlone(nn.Module):
    """A module that returns its logits among other things, or in an object."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, image: torch.Tensor) -> torch.Tensor | None:
        return _logits_of(self.wrapped(image))


def _logits_of(output: Any) -> torch.Tensor | None:
    """`output` itself, its part called logits, or the first tensor in a tuple or dict of them."""
    if isinstance(output, Mapping):  # so are the outputs of Hugging Face's models
        output = output.get("logits", tuple(output.values()))
    output = getattr(output, "logits", output)
    if isinstance(output, tuple | list):
        output = next((part for part in output if isinstance(part, torch.Tensor)), None)
    return output if isinstance(output, torch.Tensor) else None


def _exported(module: nn.Module, example: torch.Tensor) -> onnx.ModelProto:
    """Without the exporter's own optimizer, which folds BatchNorm away and merges equal weights."""
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules import common

    tidy = [
        common.materialize_reshape_shape_rule,
        common.no_op_expand_rule,
        common.no_op_cast_rule,
        common.remove_optional_bias_from_conv_rule,
    ]
    batch = torch.export.Dim("batch")
    with _quiet():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            optimize=False,
            verbose=False,
            opset_version=OPSET,
            input_names=[IMAGE],
            output_names=[LOGITS],
            dynamic_shapes=({0: batch},),
        )
        assert program is not None
        optimizer.inline(program.model)
        optimizer.fold_constants_ir(program.model)
        rewriter.rewrite(program.model, tidy)
        return _named_by_module(program.model_proto)


def _named_by_module(model: onnx.ModelProto) -> onnx.ModelProto:
    """Call nodes `blocks.3.norm1/LayerNormalization`; drop the exporter's notes and file paths."""
    used: dict[str, int] = {}
    for node in model.graph.node:
        notes = {entry.key: entry.value for entry in node.metadata_props}
        *scopes, _ = ast.literal_eval(notes.get(_SCOPES, "['']"))
        path = next((scope for scope in reversed(scopes) if not scope.startswith("_empty")), "")
        name = f"{path.removeprefix('wrapped.')}/{node.op_type}"
        used[name] = used.get(name, -1) + 1
        node.name = f"{name}_{used[name]}" if used[name] else name
    for entry in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        del entry.metadata_props[:]
    for initializer in model.graph.initializer:
        del initializer.metadata_props[:]
    del model.graph.value_info[:]  # the exporter leaves stale shapes
    return model


def _compare(
    model: onnx.ModelProto, name: str, images: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]
) -> None:
    session = open_session(model.SerializeToString())
    for batch in (2, 1):  # the example's size, and another one
        (logits,) = session.run([LOGITS], {IMAGE: images[:batch]})
        difference = float(np.abs(logits - expected[:batch]).max())
        if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max()) / 10):
            raise ZottaError(
                f"torch exported {name} wrongly: its logits differ by {difference:.2g} from the "
                "module's; export it to .onnx yourself and give that file"
            )


def _channels(module: nn.Module) -> int:
    convolutions = (part for part in module.modules() if isinstance(part, nn.Conv2d))
    first = next(convolutions, None)
    return first.in_channels if first else 3


def _weighted(module: nn.Module, weights: Path | None, random_weights: bool) -> nn.Module:
    if weights:
        load_weights(module, read_checkpoint(weights), weights)
    return randomized(module) if random_weights else module


def _imported(path: str, source: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(path)
    except Exception as error:
        raise ZottaError(f"cannot import {path} for {source}: {_reason(error)}") from error
    finally:
        sys.path.remove(str(Path.cwd()))


def _timm_preprocessing(config: dict[str, Any]) -> Preprocessing | None:
    """None if timm prepares images in a way that this package does not support."""
    interpolation, squash = config["interpolation"], config.get("crop_mode") == "squash"
    if interpolation not in ("bicubic", "bilinear"):
        return None
    _, height, width = config["input_size"]
    resize = None if squash else int(min(height, width) / config["crop_pct"])
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return Preprocessing(height, width, mean, std, resize, interpolation)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's reports of missing packages and deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
