"""Find every norm of a classifier and turn its scale and shift into inputs of the graph."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from onnx import NodeProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.norms.decomposed import match_decomposed
from zotta_edge.export.norms.native import NATIVE
from zotta_edge.export.norms.norm_form import Form, Matcher
from zotta_edge.export.sources.classifier import Classifier
from zotta_edge.format import IMAGE, Kind, Norm
from zotta_edge.graph.constants import Array
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import free_name
from zotta_edge.graph.shapes import BATCH, Shapes
from zotta_edge.tensor_layouts import LAYOUTS, Layout

Say = Callable[[str], None]

_MATCHERS: dict[str, Matcher] = NATIVE | {"ReduceMean": match_decomposed}
_KINDS: dict[Layout, Kind] = {layout: kind for kind, layout in LAYOUTS.items()}
_PARAMETER = re.compile(r"[./](weight|gamma|scale|kernel)(:0)?$")


@dataclass(frozen=True)
class ExposedNorm:
    """A norm whose affine is exposed, and its place in the rewritten graph."""

    norm: Norm
    form: str
    input: str  # tensor it reads
    output: str  # tensor it writes: scale * hat + shift


def expose_norms(
    classifier: Classifier, say: Say = lambda message: None
) -> tuple[ExposedNorm, ...]:
    """Rewrite the graph so that each norm's scale and shift are inputs that may be left out.

    Parameters
    ----------
    classifier
        Its graph and shapes are changed in place.
    say
        Told of norms that stay as they are.

    Returns
    -------
    tuple of ExposedNorm
        In the order of the graph.

    Raises
    ------
    ZottaError
        If there is no norm to adapt.

    >>> import numpy as np
    >>> from onnx import numpy_helper
    >>> from zotta_edge.export.sources.classifier import as_classifier
    >>> nodes = [
    ...     helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
    ...     helper.make_node("Flatten", ["pooled"], ["vector"]),
    ...     helper.make_node("LayerNormalization", ["vector", "head.norm.weight"], ["y"]),
    ... ]
    >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 8, 8])
    >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    >>> weight = numpy_helper.from_array(np.ones(4, np.float32), "head.norm.weight")
    >>> graph = helper.make_graph(nodes, "tiny", [x], [y], [weight])
    >>> opsets = [helper.make_opsetid("", 17)]
    >>> model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    >>> [exposed.norm.name for exposed in expose_norms(as_classifier(model))]
    ['head.norm']
    >>> [value.name for value in model.graph.input]
    ['image', 'head.norm.scale', 'head.norm.shift']
    """
    graph, shapes = classifier.graph, classifier.shapes
    exposed: list[ExposedNorm] = []
    reasons: list[str] = []
    for node, form in _forms(graph, shapes):
        kind = _kind(form, shapes)
        if kind is None:
            reasons.append(
                f"{node.name or form.kind} stays fixed: it normalizes {_shape(form, shapes)}"
            )
            say(reasons[-1])
            continue
        taken = {other.norm.name for other in exposed}
        name = free_name(_name(graph, node, form) or f"norm{len(exposed)}", taken)
        norm = Norm(name, form.scale.size, kind)
        _expose(classifier, norm, form)
        exposed.append(ExposedNorm(norm, form.kind, _entry(form), form.output))
    if not exposed:
        raise ZottaError(_nothing_to_adapt(graph, reasons))
    graph.finish()
    return tuple(exposed)


def _forms(graph: Graph, shapes: Shapes) -> list[tuple[NodeProto, Form]]:
    """All norms between the image and the logits."""
    dependent = graph.image_dependent(IMAGE) & graph.reaching(graph.outputs)
    forms = []
    for node in graph.nodes:
        matcher = _MATCHERS.get(node.op_type)
        if matcher and node.input[0] in dependent and node.output[0] in dependent:
            form = matcher(graph, shapes, node)
            if form is not None:
                forms.append((node, form))
    return forms


def _kind(form: Form, shapes: Shapes) -> Kind | None:
    """How the affine is laid out; None if samples cannot each have their own."""
    shape = shapes[form.output]
    if shape[0] != BATCH or shape[form.axis] != form.scale.size:
        return None
    return _KINDS.get(Layout(len(shape), form.axis))


def _shape(form: Form, shapes: Shapes) -> str:
    axes = [
        "batch" if size == BATCH else "?" if size < 0 else str(size) for size in shapes[form.input]
    ]
    return f"[{', '.join(axes)}] over axis {form.axis}"


def _entry(form: Form) -> str:
    """The tensor that the norm reads: `hat`, where its statistics were folded into a Conv."""
    reads = [name for node in form.core for name in node.input]
    return form.input if form.input in reads or not form.core else form.hat


def _expose(classifier: Classifier, norm: Norm, form: Form) -> None:
    """output = scale * hat + shift, with scale and shift [n, ...], n = 1 or the batch."""
    for name, values in ((norm.scale, form.scale), (norm.shift, form.shift)):
        _add_overridable(classifier, name, values.reshape(norm.shape))
    graph, shapes = classifier.graph, classifier.shapes
    scaled = f"{norm.name}.scaled"
    affine = [
        helper.make_node("Mul", [form.hat, norm.scale], [scaled], name=f"{norm.name}.mul"),
        helper.make_node("Add", [scaled, norm.shift], [form.output], name=f"{norm.name}.add"),
    ]
    graph.replace(graph.producers[form.output], [*form.core, *affine])
    for name in (form.input, form.hat, scaled):
        shapes.setdefault(name, shapes[form.output])


def _add_overridable(classifier: Classifier, name: str, values: Array) -> None:
    """An initializer that is listed as an input too: feeds may override it."""
    graph, shapes = classifier.graph, classifier.shapes
    if name in graph.names():
        other = free_name(f"{name}.source", graph.names())
        graph.rename(name, other)
        if name in shapes:
            shapes[other] = shapes.pop(name)
    graph.add_constant(name, values)
    shape = ["n", *values.shape[1:]]
    graph.model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def _name(graph: Graph, node: NodeProto, form: Form) -> str:
    """The module's path as far as the exporter recorded it; empty if it did not."""
    scopes = {entry.key: entry.value for entry in node.metadata_props}
    if "pkg.torch.onnx.name_scopes" in scopes:
        path = _scoped_path(scopes["pkg.torch.onnx.name_scopes"])
        if path:
            return path
    if "/" in node.name.strip("/"):
        return _joined(node.name.strip("/").split("/")[:-1])
    # Equal initializers are merged by exporters: a name tells only if one node reads it.
    if _PARAMETER.search(form.parameter) and len(graph.consumers.get(form.parameter, ())) <= 1:
        return _joined(_PARAMETER.sub("", form.parameter).strip("/").split("/"))
    return ""


def _scoped_path(scopes: str) -> str:
    """torch's dynamo exporter: "['', 'layer1', 'layer1.0', 'layer1.0.bn1', 'group_norm']"."""
    try:
        path = ast.literal_eval(scopes)
        return str(path[-2]) if len(path) > 1 else ""
    except (ValueError, SyntaxError, TypeError):
        return ""


def _joined(parts: list[str]) -> str:
    """blocks/blocks.0/norm1 -> blocks.0.norm1: a Sequential repeats its name in its children's."""
    path: list[str] = []
    for part in parts:
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return ".".join(path)


def _nothing_to_adapt(graph: Graph, reasons: list[str]) -> str:
    if reasons:
        return f"the model has no norm layers that can be adapted: {reasons[0]}"
    ops = {node.op_type for node in graph.nodes}
    if ops & {"Conv", "ConvTranspose"}:
        return (
            "the model has no norm layers (BatchNorm was folded into Conv at export): give "
            "zotta-edge export the torch module, or export it again with torch.onnx.export(..., "
            "dynamo=False, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)"
        )
    return (
        "the model has no norm layers to adapt: adaptation moves the scale and shift of LayerNorm, "
        "GroupNorm, InstanceNorm, BatchNorm or RMSNorm"
    )
