"""Merged decoders: two graphs in one file, of which the one with a cache does for both."""

import onnx
from onnx import helper

from zotta_edge.graph.nodes import attribute

_SWITCH = "use_cache_branch"


def unmerge(model: onnx.ModelProto) -> None:
    """Put the branch with the cache in the place of the If that chooses between both.

    Older versions of optimum write `decoder_model_merged.onnx` that way. The cache may be empty,
    so the other branch is not needed.
    """
    graph = model.graph
    switches = [node for node in graph.node if _SWITCH in node.input and node.op_type == "If"]
    if not switches:
        return
    for node in switches:
        branch = attribute(node, "then_branch")
        graph.initializer.extend(branch.initializer)
        graph.node.extend(branch.node)
        graph.node.extend(
            helper.make_node("Identity", [inner.name], [outer])
            for inner, outer in zip(branch.output, node.output, strict=True)
            if inner.name != outer
        )
        graph.node.remove(node)
    kept = [value for value in graph.input if value.name != _SWITCH]
    del graph.input[:]
    graph.input.extend(kept)
