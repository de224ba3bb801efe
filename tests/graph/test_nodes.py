"""What a node reads, branches included."""

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, helper, numpy_helper

from zotta_edge.graph.nodes import opset, reads, rename_reads


def branch(nodes: list[NodeProto], outputs: list[str], inputs: tuple[str, ...] = ()) -> GraphProto:
    declared = [helper.make_empty_tensor_value_info(name) for name in outputs]
    own = [helper.make_empty_tensor_value_info(name) for name in inputs]
    stored = [numpy_helper.from_array(np.zeros(1, np.float32), "stored")]
    return helper.make_graph(nodes, "branch", own, declared, stored)


def conditional(then: GraphProto) -> NodeProto:
    return helper.make_node("If", ["condition"], ["y"], then_branch=then)


def test_optional_inputs_and_repeats_are_left_out() -> None:
    assert reads(helper.make_node("Clip", ["x", "", "x"], ["y"])) == ["x"]


def test_what_a_branch_makes_is_its_own() -> None:
    inner = [
        helper.make_node("Add", ["outer", "stored"], ["made"]),
        helper.make_node("Mul", ["made", "item"], ["result"]),
    ]
    assert reads(conditional(branch(inner, ["result"], ("item",)))) == ["condition", "outer"]


def test_an_outer_tensor_that_a_branch_hands_on() -> None:
    assert reads(conditional(branch([], ["outer"]))) == ["condition", "outer"]


def test_branches_within_branches() -> None:
    deepest = conditional(branch([helper.make_node("Neg", ["far"], ["z"])], ["z"]))
    deepest.input[0] = "inner.condition"
    node = conditional(branch([deepest], ["y"]))
    assert reads(node) == ["condition", "inner.condition", "far"]
    rename_reads(node, "far", "renamed")
    assert reads(node) == ["condition", "inner.condition", "renamed"]


def test_renaming_reaches_what_a_branch_hands_on_but_not_what_it_makes() -> None:
    node = conditional(branch([helper.make_node("Neg", ["a"], ["b"])], ["outer", "b"]))
    for old in ("outer", "b"):
        rename_reads(node, old, f"{old}.new")
    assert [value.name for value in node.attribute[0].g.output] == ["outer.new", "b"]


def test_opset_of_the_standard_operators() -> None:
    model = onnx.ModelProto()
    assert opset(model) == 0
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    assert opset(model) == 17
