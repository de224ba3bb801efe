"""Find every norm of a classifier and turn its scale and shift into inputs of the graph."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from onnx import NodeProto, TensorProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.export.norms.foreign import match_mean, match_scaled
from zotta_edge.export.norms.insert import INSERTED, inserted_forms
from zotta_edge.export.norms.names import norm_name
from zotta_edge.export.norms.native import NATIVE
from zotta_edge.export.norms.norm_form import Form, Matcher
from zotta_edge.export.sources.classifier import Classifier
from zotta_edge.format import IMAGE, Kind, Norm
from zotta_edge.graph.constants import Array
from zotta_edge.graph.nodes import free_name
from zotta_edge.graph.shapes import BATCH, Shapes
from zotta_edge.tensor_layouts import LAYOUTS, Layout

Say = Callable[[str], None]

_MATCHERS: dict[str, Matcher] = NATIVE | {"ReduceMean": match_mean, "Mul": match_scaled}
_KINDS: dict[Layout, Kind] = {layout: kind for kind, layout in LAYOUTS.items()}


@dataclass(frozen=True)
class ExposedNorm:
    """A norm whose affine is exposed, and its place in the rewritten graph."""

    norm: Norm
    form: str
    input: str  # tensor it reads
    output: str  # tensor it writes: scale * hat + shift


def expose_norms(
    classifier: Classifier, say: Say = lambda message: None, pattern: str | None = None
) -> tuple[ExposedNorm, ...]:
    """Rewrite the graph so that each norm's scale and shift are inputs that may be left out.

    A network without norms gets affines of its own: see `inserted_forms`.

    Parameters
    ----------
    classifier
        Its graph and shapes are changed in place.
    say
        Told of norms that stay as they are, and of affines that are inserted.
    pattern
        Regular expression for the names of the products that get an affine, where there are no
        norms. None: one a block.

    Returns
    -------
    tuple of ExposedNorm
        In the order of the graph.

    Raises
    ------
    ZottaError
        If there is nothing to adapt.

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
    reasons: list[str] = []
    norms = [pair for pair in _forms(classifier) if _fits(classifier, *pair, reasons)]
    for reason in reasons:
        say(reason)
    forms = norms or inserted_forms(classifier, pattern)
    if not forms:
        raise ZottaError(_nothing_to_adapt(reasons))
    if not norms:
        say(f"the model has no norms: {len(forms)} affines are inserted behind its products")
    exposed: list[ExposedNorm] = []
    for node, form in forms:
        taken = {other.norm.name for other in exposed}
        exposed.append(_expose(classifier, _norm(classifier, node, form, taken), form))
    classifier.graph.finish()
    return tuple(exposed)


def _forms(classifier: Classifier) -> list[tuple[NodeProto, Form]]:
    """All norms between the image and the logits."""
    graph, shapes = classifier.graph, classifier.shapes
    dependent = graph.image_dependent(IMAGE) & graph.reaching(graph.outputs)
    forms = []
    for node in graph.nodes:
        matcher = _MATCHERS.get(node.op_type)
        if matcher and node.input[0] in dependent and node.output[0] in dependent:
            form = matcher(graph, shapes, node)
            if form is not None:
                forms.append((node, form))
    return forms


def _fits(classifier: Classifier, node: NodeProto, form: Form, reasons: list[str]) -> bool:
    """Whether samples can each have their own affine; if not, why."""
    kind = _kind(form, classifier.shapes)
    if kind is None:
        shape = _shape(form, classifier.shapes)
        reasons.append(f"{node.name or form.kind} stays fixed: it normalizes {shape}")
    return kind is not None


def _norm(classifier: Classifier, node: NodeProto, form: Form, taken: set[str]) -> Norm:
    parameter = form.parameter
    name = norm_name(classifier.graph, node, parameter) or f"norm{len(taken)}"
    kind = cast(Kind, _kind(form, classifier.shapes))
    return Norm(free_name(name, taken), form.scale.size, kind, form.kind == INSERTED)


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


def _expose(classifier: Classifier, norm: Norm, form: Form) -> ExposedNorm:
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
    return ExposedNorm(norm, form.kind, _entry(form), form.output)


def _add_overridable(classifier: Classifier, name: str, values: Array) -> None:
    """An initializer that is listed as an input too: feeds may override it."""
    graph, shapes = classifier.graph, classifier.shapes
    if name in graph.names():
        other = free_name(f"{name}.source", graph.names())
        graph.rename(name, other)
        if name in shapes:
            shapes[other] = shapes.pop(name)
    graph.add_constant(name, values)
    # Of its own name: where two inputs share one, ONNX Runtime may give them a common buffer, but
    # one of them may hold a row and the other a row for each sample.
    shape = [f"n.{name}", *values.shape[1:]]
    graph.model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def _nothing_to_adapt(reasons: list[str]) -> str:
    if reasons:
        return f"the model has no norm layers that can be adapted: {reasons[0]}"
    return (
        "the model has no norm layers to adapt, and no convolution or product before its last one "
        "that an affine could stand behind"
    )
