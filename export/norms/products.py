"""Products with constant weights, float or integer, and the tensor that each finally gives."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import NodeProto, helper

from zotta_edge.export.sources.classifier import Classifier
from zotta_edge.format import IMAGE
from zotta_edge.graph.index import Graph
from zotta_edge.graph.shapes import Shape, Shapes

_CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger")
_PRODUCTS = (*_CONVOLUTIONS, "Gemm", "MatMul", "MatMulNBits", "MatMulInteger")
_FINISHING = ("Cast", "Mul", "Add", "Identity")  # from int32 sums to float, and the bias
_CODING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Identity")
_SUMS = ("Add", "Sum")


@dataclass(frozen=True, eq=False)
class Product:
    """A Conv, Gemm or MatMul of any arithmetic."""

    node: NodeProto
    tensor: str  # what it gives, with its bias
    axis: int  # of the channels in `tensor`
    coding: tuple[str, str] | None = None  # scale and zero point, where `tensor` holds codes


def find_products(classifier: Classifier) -> list[Product]:
    """All between the image and the logits that another such product follows, in order."""
    graph, shapes = classifier.graph, classifier.shapes
    dependent = graph.image_dependent(IMAGE)
    way = dependent & graph.reaching(graph.outputs)
    nodes = [
        node
        for node in graph.nodes
        if node.op_type in _PRODUCTS and node.output[0] in way and node.input[1] not in dependent
    ]
    before = graph.reaching([name for node in nodes for name in node.input])
    products = [_product(graph, shapes, node) for node in nodes]
    return [product for product in products if product.tensor in before]


def _product(graph: Graph, shapes: Shapes, node: NodeProto) -> Product:
    tensor = _finished(graph, shapes, node.output[0])
    axis = 1 if node.op_type in _CONVOLUTIONS else len(shapes[tensor]) - 1
    quantizer = graph.single_consumer(tensor, "QuantizeLinear")
    if quantizer is None or len(quantizer.input) < 3:
        return Product(node, tensor, axis)
    codes = quantizer.output[0]
    reader = graph.single_consumer(codes, "DequantizeLinear")
    if reader is not None and not _multiplied(graph, reader.output[0]):
        return Product(node, reader.output[0], axis)  # float all the way: nothing to code again
    return Product(node, codes, axis, (quantizer.input[1], quantizer.input[2]))


def _finished(graph: Graph, shapes: Shapes, name: str) -> str:
    """The tensor behind the Cast, scale and bias that belong to an integer product or a MatMul."""
    while (node := graph.single_consumer(name, *_FINISHING)) is not None:
        others = [other for other in node.input if other != name]
        if not all(_is_small(graph, shapes, other) for other in others):
            break
        name = node.output[0]
    return name


def _is_small(graph: Graph, shapes: Shapes, name: str) -> bool:
    """A scale or a bias: a constant, or one number or one a channel for all samples."""
    shape: Shape = shapes.get(name, ())
    return graph.constant(name) is not None or sum(size != 1 for size in shape) <= 1


def _multiplied(graph: Graph, name: str) -> bool:
    return any(node.op_type in _PRODUCTS for node in graph.consumers.get(name, ()))


def node_behind_block(graph: Graph, product: Product) -> NodeProto | None:
    """The node behind a block's last product: the residual sum, or the next block's product.

    None inside a block: there an activation follows. It may hide in a range that starts at zero.
    """
    if product.coding and _starts_at_zero(graph, product.coding[1]):
        return None
    for node in _readers(graph, product.tensor):
        if node.op_type in _SUMS or node.op_type in _PRODUCTS:
            return node
    return None


def _starts_at_zero(graph: Graph, zero_point: str) -> bool:
    code = graph.constant(zero_point)
    return code is not None and int(code.ravel()[0]) in (0, -128) and code.dtype.itemsize == 1


def _readers(graph: Graph, name: str) -> Iterable[NodeProto]:
    """Nodes that read a tensor, or codes of it."""
    for node in graph.consumers.get(name, ()):
        if node.op_type in _CODING:
            yield from _readers(graph, node.output[0])
        else:
            yield node


def opened(classifier: Classifier, product: Product) -> str:
    """The product's tensor in float; codes are read and written again, at their own scale.

    Without an affine in between this changes no code. A range wider than the source's would.
    """
    if product.coding is None:
        return product.tensor
    graph, shapes = classifier.graph, classifier.shapes
    codes, name = product.tensor, f"{product.tensor}.float"
    maker = graph.producers[codes]
    copy = NodeProto()
    copy.CopyFrom(maker)
    copy.output[0] = f"{codes}.source"
    read = helper.make_node("DequantizeLinear", [copy.output[0], *product.coding], [name])
    write = helper.make_node("QuantizeLinear", [name, *product.coding], [codes])
    graph.replace(maker, [copy, read, write])
    shapes[name] = shapes[copy.output[0]] = shapes[codes]
    return name
