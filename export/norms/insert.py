"""Affines for a network without norms: y * 1 + 0 behind the last product of each block."""

import re

import numpy as np
from onnx import AttributeProto, NodeProto

from zotta_edge.errors import ZottaError
from zotta_edge.export.norms.names import norm_name
from zotta_edge.export.norms.norm_form import Form, hat_of, make_form
from zotta_edge.export.norms.products import Product, find_products, node_behind_block, opened
from zotta_edge.export.sources.classifier import Classifier
from zotta_edge.graph.cost_model import cost
from zotta_edge.graph.index import Graph
from zotta_edge.graph.shapes import BATCH, Shape

INSERTED = "inserted"
BUDGET = 0.05  # of what the network costs as it came
_PASSES = 2  # over the tensor: a Mul and an Add
_CODED_PASSES = 4  # and two more where it is read from codes and written to them


def inserted_forms(
    classifier: Classifier, pattern: str | None = None
) -> list[tuple[NodeProto, Form]]:
    """Where affines go into a network that has no norms, in the order of the graph.

    Parameters
    ----------
    classifier
        Tensors that are only there in 8 bits are made float in place.
    pattern
        A regular expression: the products whose names it finds get one, whatever that costs. None:
        one a block, as many as `BUDGET` allows, at least one a stage.

    Returns
    -------
    list
        Each product with the form of its affine; empty if no product precedes the last one.
    """
    products = [item for item in find_products(classifier) if _is_per_sample(classifier, item)]
    if pattern is not None and products:
        products = _named(classifier.graph, products, pattern)
    else:
        products = _affordable(classifier, _last_of_blocks(classifier.graph, products))
    return [(item.node, _form(classifier, item)) for item in products]


def _is_per_sample(classifier: Classifier, product: Product) -> bool:
    shape = classifier.shapes.get(product.tensor, ())
    return 2 <= len(shape) <= 4 and shape[0] == BATCH and min(shape[1:]) > 0


def _named(graph: Graph, products: list[Product], pattern: str) -> list[Product]:
    names = [norm_name(graph, item.node) or item.node.name for item in products]
    try:
        find = re.compile(pattern).search
        found = [item for item, name in zip(products, names, strict=True) if find(name)]
    except re.error as error:
        raise ZottaError(f"--layers {pattern!r} is not a regular expression: {error}") from error
    if not found:
        raise ZottaError(
            f"--layers {pattern!r} matches none of the {len(names)} products that an affine can "
            f"stand behind, with names such as {names[0]} and {names[-1]}"
        )
    return found


def _last_of_blocks(graph: Graph, products: list[Product]) -> list[Product]:
    """One for each residual sum or linear bottleneck; all products if there are no such blocks."""
    deepest: dict[str, tuple[int, Product]] = {}
    for product in products:
        behind = node_behind_block(graph, product)
        if behind is None:
            continue
        depth = len(graph.reaching([product.tensor]))  # a shortcut's convolution has less before it
        if depth > deepest.get(behind.output[0], (0, product))[0]:
            deepest[behind.output[0]] = depth, product
    kept = [product for _, product in deepest.values()]
    return [item for item in products if item in kept] if len(kept) > 1 else products


def _affordable(classifier: Classifier, products: list[Product]) -> list[Product]:
    """The cheapest first, as far as the budget goes; of each shape, that is of each stage, one."""
    budget = BUDGET * _network_cost(classifier)
    kept: list[Product] = []
    stages: set[Shape] = set()
    for product in sorted(products, key=lambda item: _affine_cost(classifier, item)):
        budget -= _affine_cost(classifier, product)
        shape = classifier.shapes[product.tensor]
        if budget >= 0 or shape not in stages:
            kept.append(product)
            stages.add(shape)
    return [item for item in products if item in kept]


def _affine_cost(classifier: Classifier, product: Product) -> float:
    shape = _of_one(classifier.shapes[product.tensor])
    return cost("Mul", [], [shape], {}) * (_CODED_PASSES if product.coding else _PASSES)


def _network_cost(classifier: Classifier) -> float:
    model = classifier.graph.model
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes |= classifier.shapes
    total = 0.0
    for node in classifier.graph.nodes:
        inputs = [_of_one(shapes.get(name, ())) for name in node.input]
        outputs = [_of_one(shapes.get(name, ())) for name in node.output]
        numbers = {item.name: item.i for item in node.attribute if item.type == AttributeProto.INT}
        total += cost(node.op_type, inputs, outputs, numbers)
    return total


def _of_one(shape: Shape) -> Shape:
    return tuple(max(size, 1) for size in shape)


def _form(classifier: Classifier, product: Product) -> Form:
    """The product's last node, or the one that reads its codes, gives `hat` instead."""
    output = opened(classifier, product)
    core = NodeProto()
    core.CopyFrom(classifier.graph.producers[output])
    core.output[0] = hat_of(output)
    channels = classifier.shapes[output][product.axis]
    scale, shift = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    return make_form(INSERTED, output, output, product.axis, scale, shift, "", [core])
