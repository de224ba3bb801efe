"""Which tensors' channel moments are aligned: before every activation, if possible.

Needs the onnx package, so it is imported only where there is a graph to look at.
"""

from onnx import NodeProto

from zotta_edge.format import IMAGE, ModelInfo, Norm
from zotta_edge.format.moments import Site
from zotta_edge.graph.index import Graph
from zotta_edge.graph.shapes import Shape
from zotta_edge.tensor_layouts import LAYOUTS, Kind

_CONVOLUTIONS = ("Conv", "ConvInteger")
_KINDS: dict[tuple[int, int], Kind] = {
    (layout.rank, layout.channel_axis): kind for kind, layout in LAYOUTS.items()
}


def find_sites(graph: Graph, info: ModelInfo, shapes: dict[str, Shape]) -> tuple[Site, ...]:
    """What every exposed norm reads; without norms, what every convolution gives.

    Parameters
    ----------
    graph
        Of a model file.
    shapes
        Of its tensors for a single image.
    """
    sites = [_of_norm(graph, norm, shapes) for norm in info.norms]
    if all(norm.inserted for norm in info.norms):
        known = {site.tensor for site in sites}
        tensors = (name for name in _convolved(graph, info) if name in shapes and name not in known)
        tensors = (name for name in tensors if not _is_coded(graph, name))
        sites += [_site(name, "map", shapes[name]) for name in tensors]
    places = {name: place for place, node in enumerate(graph.nodes) for name in node.output}
    return tuple(sorted(sites, key=lambda site: places[site.tensor]))


def _of_norm(graph: Graph, norm: Norm, shapes: dict[str, Shape]) -> Site:
    """The tensor that its scale is multiplied with."""
    scale, axis = norm.scale, norm.shape.index(norm.channels, 1)
    product = graph.consumers[scale][0]
    if product.op_type == "Transpose":  # integer kernels have the channels last
        scale, axis = product.output[0], len(norm.shape) - 1
        product = graph.consumers[scale][0]
    tensor = next(name for name in product.input if name != scale)
    return _site(tensor, _KINDS[len(norm.shape), axis], shapes[tensor], norm.name)


def _site(tensor: str, kind: Kind, shape: Shape, norm: str = "") -> Site:
    layout = LAYOUTS[kind]
    positions = 1
    for axis in layout.pooled_axes:
        positions *= shape[axis]
    return Site(tensor, kind, shape[layout.channel_axis], positions, norm)


def _is_coded(graph: Graph, name: str) -> bool:
    """Whether codes are made of a tensor: an affine would cost the convolution its integer kernel.

    Float kernels round otherwise: a QDQ MobileNetV2 lost four points on clean images by that.
    """
    return any(node.op_type == "QuantizeLinear" for node in graph.consumers[name])


def _convolved(graph: Graph, info: ModelInfo) -> list[str]:
    """What the convolutions on the way from the image to the answers give, with their biases."""
    way = graph.image_dependent(IMAGE) & graph.reaching(info.answers)
    return [
        name
        for node in graph.nodes
        if node.op_type in _CONVOLUTIONS and node.output[0] in way
        for name in [_finished(graph, node)]
        if name in way
    ]


def _finished(graph: Graph, node: NodeProto) -> str:
    """Integer sums are cast, scaled by one number, and get their bias; all that is the product."""
    name = str(node.output[0])
    if node.op_type == "ConvInteger":
        for op in ("Cast", "Mul"):
            behind = graph.single_consumer(name, op)
            name = behind.output[0] if behind else name
    bias = graph.single_consumer(name, "Add")
    if bias and any(graph.constant(other) is not None for other in bias.input if other != name):
        name = str(bias.output[0])
    return name
