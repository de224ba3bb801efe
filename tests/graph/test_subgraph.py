"""Parts of graphs, cut out and run alone."""

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from zotta_edge.errors import ZottaError
from zotta_edge.graph.index import Graph
from zotta_edge.graph.nodes import made
from zotta_edge.graph.shapes import ShapeProbe
from zotta_edge.graph.subgraph import Part, live, parse, run_parts

X = np.arange(3, dtype=np.float32)


def chain() -> list[NodeProto]:
    return [
        helper.make_node("Mul", ["image", "two"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["c"]),
        helper.make_node("Exp", ["a"], ["unused"]),
    ]


def graph() -> Graph:
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3])
    output = helper.make_tensor_value_info("c", TensorProto.FLOAT, None)
    stored = {"two": np.array(2, np.float32), "shape": np.array([3, -1])}
    weights = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    opsets = [helper.make_opsetid("", 17)]
    content = helper.make_graph(chain(), "chain", [image], [output], weights)
    return Graph(helper.make_model(content, opset_imports=opsets, ir_version=8))


def test_live_nodes_include_those_a_branch_captures() -> None:
    branch = helper.make_graph([], "then", [], [helper.make_empty_tensor_value_info("b")])
    condition = helper.make_node("If", ["condition"], ["z"], then_branch=branch)
    assert made(live([*chain(), condition], ["z"])) == ["a", "b", "z"]


def test_parts_share_a_session(sessions: list[object]) -> None:
    first, second = run_parts(graph(), [Part({"image": X}, "a"), Part({"image": X}, "b")])
    np.testing.assert_array_equal(first, 2 * X)
    np.testing.assert_array_equal(second, -2 * X)
    assert len(sessions) == 1


def test_a_part_that_needs_more_than_its_feeds_is_none(sessions: list[object]) -> None:
    assert run_parts(graph(), [Part({}, "b")]) == [None]
    assert not sessions


def test_a_part_that_fails_leaves_the_others(sessions: list[object]) -> None:
    two = np.ones(2, np.float32)  # cannot be [3, -1]
    values = run_parts(graph(), [Part({"a": two}, "b"), Part({"a": two}, "c")])
    np.testing.assert_array_equal(values[0], -two)
    assert values[1] is None
    assert len(sessions) == 3


def test_parts_that_overlap_run_one_by_one() -> None:
    """What one part is fed, another computes."""
    first, second = run_parts(graph(), [Part({"image": X}, "b"), Part({"a": X}, "b")])
    np.testing.assert_array_equal(first, -2 * X)
    np.testing.assert_array_equal(second, -X)


def test_a_probe_leaves_the_model_as_it_was() -> None:
    model = graph().model
    before = model.SerializeToString()
    probe = ShapeProbe(model, ["a", "c"], ["a"])
    assert probe.run("image", (3,), 2) == {"a": (2, 3), "c": (3, 2)}
    assert model.SerializeToString() == before
    assert probe.declaration("a", (-1, 3)) == helper.make_tensor_value_info(
        "a", TensorProto.FLOAT, ["batch", 3]
    )


def test_a_batch_that_does_not_run() -> None:
    probe = ShapeProbe(graph().model, ["c"])
    with pytest.raises(ZottaError, match=r"does not run on a batch of 2 images of shape \(4,\)"):
        probe.run("image", (4,), 2)


def test_parsing_refuses_what_is_no_model() -> None:
    with pytest.raises(ZottaError, match=r"m\.onnx is not an ONNX model"):
        parse(b"hello world", "m.onnx")
    model = onnx.ModelProto()
    model.graph.initializer.add(name="w").external_data.add(key="location", value="elsewhere")
    with pytest.raises(ZottaError, match=r"m\.onnx keeps its weights in other files"):
        parse(model.SerializeToString(), "m.onnx")
