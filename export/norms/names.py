"""Names of norms: the path of the module, as far as an exporter recorded it."""

import ast
import re

from onnx import NodeProto

from zotta_edge.graph.index import Graph

_PARAMETER = re.compile(r"[./](weight|gamma|scale|kernel)(:0)?$")


def norm_name(graph: Graph, node: NodeProto, parameter: str = "") -> str:
    """The module's path as far as the exporter recorded it; empty if it did not."""
    scopes = {entry.key: entry.value for entry in node.metadata_props}
    if "pkg.torch.onnx.name_scopes" in scopes:
        path = _scoped_path(scopes["pkg.torch.onnx.name_scopes"])
        if path:
            return path
    if "/" in node.name.strip("/"):
        return _joined(node.name.strip("/").split("/")[:-1])
    # Equal initializers are merged by exporters: a name tells only if one node reads it.
    if _PARAMETER.search(parameter) and len(graph.consumers.get(parameter, ())) <= 1:
        return _joined(_PARAMETER.sub("", parameter).strip("/").split("/"))
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
