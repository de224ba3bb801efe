"""Decoders that other tools wrote as ONNX: their chosen norms' scales become inputs.

optimum and onnxruntime-genai call the cache `past_key_values.*` and `present.*`; everything but
the norms and the way to the head stays as they made it, quantized weights included.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import NodeProto, TensorProto, helper

from zotta_edge.decoder_format import FIRST, HIDDEN, IDS, LOGITS, SHIFT, DecoderShape, ScaleNorm
from zotta_edge.errors import ZottaError
from zotta_edge.export.decoders.beside import settings_beside
from zotta_edge.export.decoders.merged import unmerge
from zotta_edge.export.norms.decomposed import match_decomposed
from zotta_edge.export.norms.names import norm_name
from zotta_edge.export.norms.native import NATIVE
from zotta_edge.export.norms.norm_form import Form
from zotta_edge.format import Floats
from zotta_edge.graph.index import Graph
from zotta_edge.graph.shapes import BATCH, VARYING, Shape

_MATCHERS = {
    name: NATIVE[name]
    for name in (
        "RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
    )
} | {"ReduceMean": match_decomposed}  # fmt: skip
_LAYER = re.compile(r"(?:layers|blocks|h|blk)\.(\d+)\.")
_CONTEXT = 2048  # where no config.json tells


@dataclass(frozen=True)
class Found:
    """An ONNX decoder whose chosen norms are inputs now."""

    model: onnx.ModelProto
    shape: DecoderShape
    norms: tuple[ScaleNorm, ...]
    affines: Mapping[str, Floats]
    cache: bool
    pads: bool  # whether its attention reads masks that begin with zeros


def is_decoder(path: Path) -> bool:
    """Whether an .onnx file reads tokens rather than an image."""
    return outline(path) is not None


def outline(path: Path) -> onnx.ModelProto | None:
    """A decoder without weights that lie beside it; None: not a decoder, or nothing readable."""
    try:
        model = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError, ValueError):
        return None
    return model if IDS in {value.name for value in model.graph.input} else None


def adaptable_onnx(path: Path, pattern: str) -> Found:
    """Read a decoder of another exporter and expose the norms whose names match `pattern`."""
    model = _read(path)
    if any(entry.key == "zotta.format" for entry in model.metadata_props):
        raise ZottaError(
            f"{path} is already exported by zotta-edge: export the model it was made from"
        )
    unmerge(model)
    settings = settings_beside(path.parent)
    graph = Graph(model)
    inputs = {value.name: value for value in model.graph.input}
    if IDS not in inputs or LOGITS not in graph.outputs:
        raise ZottaError(f"{path} is no decoder: it has no input {IDS}, or no output {LOGITS}")
    _check_types(model, path)
    cache = "past_key_values.0.key" in inputs
    hidden = _hidden_size(model)
    forms = _forms(graph, hidden)
    if len(forms) < 2:
        raise ZottaError(
            f"{path} has no RMSNorm left to adapt: its norms are fused into other operators; "
            "export it again without that fusion"
        )
    chosen = _chosen(graph, forms[:-1], pattern)
    affines = {norm.scale: form.scale.reshape(1, 1, -1) for norm, form in chosen}
    for norm, form in chosen:
        _expose(graph, norm, form)
    _open_head(graph, forms[-1][1].output, hidden)
    graph.finish()
    pads = not any(node.op_type == "GroupQueryAttention" for node in graph.nodes)
    shape = _shape(model, inputs, hidden, settings, path)
    return Found(model, shape, tuple(norm for norm, _ in chosen), affines, cache, pads)


def _read(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path)  # weights in a file beside it come along
    except (OSError, DecodeError, ValueError, onnx.checker.ValidationError) as error:
        raise ZottaError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from error


def _check_types(model: onnx.ModelProto, path: Path) -> None:
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    if any(value.type.tensor_type.elem_type in halves for value in model.graph.output):
        raise ZottaError(
            f"{path} computes in 16 bits, which CPUs do not: export it with fp32 activations "
            "(weights may have 4 or 8 bits)"
        )


def _hidden_size(model: onnx.ModelProto) -> int:
    """The length that most norms' scales have."""
    vectors = [t for t in model.graph.initializer if len(t.dims) == 1 and t.dims[0] > 1]
    named = [tensor for tensor in vectors if "norm" in tensor.name.lower()] or vectors
    sizes = Counter(int(tensor.dims[0]) for tensor in named)
    return sizes.most_common(1)[0][0] if sizes else 0


class _TokenShapes(dict[str, Shape]):
    """Norms of a decoder read [batch, sequence, hidden]; nothing else is asked for."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self._shape = (BATCH, VARYING, hidden)

    def __missing__(self, name: str) -> Shape:
        return self._shape


def _forms(graph: Graph, hidden: int) -> list[tuple[NodeProto, Form]]:
    """All norms of the hidden state, in the order of the graph."""
    shapes, forms = _TokenShapes(hidden), []
    for node in graph.nodes:
        matcher = _MATCHERS.get(node.op_type)
        form = matcher(graph, shapes, node) if matcher else None
        if form is not None and form.scale.size == hidden and not form.shift.any():
            forms.append((node, form))
    return forms


def _chosen(
    graph: Graph, forms: list[tuple[NodeProto, Form]], pattern: str
) -> list[tuple[ScaleNorm, Form]]:
    """Those whose names match; where no name says anything, every second one."""
    named = [
        (norm_name(graph, node, form.parameter) or f"norm{place}", form)
        for place, (node, form) in enumerate(forms)
    ]
    matching = [(place, *pair) for place, pair in enumerate(named) if re.search(pattern, pair[0])]
    if not matching and any(_LAYER.search(name) for name, _ in named):
        raise ZottaError(f"no norm matches {pattern!r}: there are {named[0][0]}, {named[1][0]} ...")
    matching = matching or [(place, *named[place]) for place in range(1, len(named), 2)]
    chosen = []
    for place, name, form in matching:
        layer = _LAYER.search(name)
        attended = "input_layernorm" in name
        number = int(layer[1]) if layer else place // 2
        chosen.append((ScaleNorm(name, form.scale.size, number, attended), form))
    return chosen


def _expose(graph: Graph, norm: ScaleNorm, form: Form) -> None:
    """output = hat * scale."""
    axes = [f"n.{norm.name}", 1, norm.channels]
    _overridable(graph, norm.scale, form.scale.reshape(1, 1, -1).astype(np.float32), axes)
    scaled = helper.make_node("Mul", [form.hat, norm.scale], [form.output], name=norm.name)
    graph.replace(graph.producers[form.output], [*form.core, scaled])


def _open_head(graph: Graph, final: str, hidden: int) -> None:
    """Let the head read the last hidden state from `logits.first` on, shifted."""
    _overridable(graph, FIRST, np.zeros(1, np.int64), [1])
    _overridable(graph, SHIFT, np.zeros((1, 1, hidden), np.float32), ["n.shift", 1, hidden])
    end = graph.add_constant("zotta.end", np.array([np.iinfo(np.int64).max], np.int64))
    axis = graph.add_constant("zotta.axis", np.array([1], np.int64))
    graph.reroute(final, "zotta.moved")
    nodes = [
        helper.make_node("Identity", [final], [HIDDEN]),
        helper.make_node("Slice", [HIDDEN, FIRST, end, axis], ["zotta.kept"]),
        helper.make_node("Add", ["zotta.kept", SHIFT], ["zotta.moved"]),
    ]
    graph.insert_after(final, nodes)
    outputs = graph.model.graph.output
    axes: list[Any] = ["batch_size", "sequence_length", hidden]
    outputs.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, axes))
    logits = next(value for value in outputs if value.name == LOGITS)
    logits.type.tensor_type.shape.dim[1].dim_param = "kept"


def _overridable(graph: Graph, name: str, value: Any, axes: list[Any]) -> None:
    graph.add_constant(name, value)
    kind = TensorProto.INT64 if value.dtype == np.int64 else TensorProto.FLOAT
    graph.model.graph.input.append(helper.make_tensor_value_info(name, kind, axes))


def _shape(
    model: onnx.ModelProto, inputs: Any, hidden: int, settings: dict[str, Any], path: Path
) -> DecoderShape:
    keys = [name for name in inputs if re.fullmatch(r"past_key_values\.\d+\.key", name)]
    logits = next(value for value in model.graph.output if value.name == LOGITS)
    vocabulary = logits.type.tensor_type.shape.dim[2].dim_value or settings.get("vocab_size")
    heads, size = settings.get("num_key_value_heads"), settings.get("head_dim")
    if keys:
        axes = inputs[keys[0]].type.tensor_type.shape.dim
        heads, size = axes[1].dim_value or heads, axes[3].dim_value or size
    if not vocabulary or (keys and not (heads and size)):
        raise ZottaError(f"{path} does not tell its sizes: put its config.json beside it")
    layers = len(keys) or settings.get("num_hidden_layers") or 1
    context = settings.get("max_position_embeddings") or _CONTEXT
    return DecoderShape(vocabulary, hidden, layers, heads or 1, size or 1, context)
