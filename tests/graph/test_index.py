"""Edits leave the index as a fresh one of the written model would be."""

import nets
import numpy as np
import pytest
from onnx import NodeProto, helper

from zotta_edge.errors import ZottaError
from zotta_edge.graph.index import Graph
from zotta_edge.sessions import open_session

NETS = ("vit", "resnet-bn")


def assert_true(graph: Graph) -> None:
    """As if indexed anew; who reads a tensor has no order."""
    graph.finish()
    fresh = Graph(graph.model)
    assert [node.output[:] for node in graph.nodes] == [node.output[:] for node in fresh.nodes]
    assert _makers(graph) == _makers(fresh)
    assert _readers(graph) == _readers(fresh)
    assert graph.names() == fresh.names()


def _makers(graph: Graph) -> dict[str, str]:
    return {name: node.output[0] for name, node in graph.producers.items()}


def _readers(graph: Graph) -> dict[str, list[str]]:
    return {
        name: sorted(node.output[0] for node in nodes)
        for name, nodes in graph.consumers.items()
        if nodes
    }


def random_node(graph: Graph, rng: np.random.Generator) -> NodeProto:
    return graph.nodes[rng.integers(len(graph.nodes))]


@pytest.mark.parametrize("net", NETS)
def test_any_sequence_of_edits(net: str) -> None:
    rng = np.random.default_rng(0)
    graph = Graph(nets.load(net, 17))
    for step in range(60):
        node = random_node(graph, rng)
        y = node.output[0]
        match rng.integers(5):
            case 0:
                inner = NodeProto()
                inner.CopyFrom(node)
                inner.output[0] = f"{y}.{step}"
                graph.replace(node, [inner, helper.make_node("Identity", [f"{y}.{step}"], [y])])
            case 1 if node.input and node.input[0]:
                copy = helper.make_node("Identity", node.input[:1], [f"{y}.in{step}"])
                graph.insert_before(node, [copy])
                graph.set_input(node, 0, f"{y}.in{step}")
            case 2:
                graph.reroute(y, f"{y}.way{step}")
                graph.insert_after(y, [helper.make_node("Identity", [y], [f"{y}.way{step}"])])
            case 3:
                graph.rename(y, f"{y}.named{step}")
            case _:
                name = f"extra{step}"
                graph.append(helper.make_node("Identity", [y], [name]))
                graph.model.graph.output.append(helper.make_empty_tensor_value_info(name))
        if step % 20 == 19:
            assert_true(graph)
    open_session(graph.model.SerializeToString())  # which checks it


def tiny(*nodes: NodeProto, outputs: tuple[str, ...] = ("z",)) -> Graph:
    declared = [helper.make_empty_tensor_value_info(name) for name in outputs]
    opsets = [helper.make_opsetid("", 17)]
    return Graph(
        helper.make_model(helper.make_graph(nodes, "tiny", [], declared), opset_imports=opsets)
    )


def test_a_node_that_reads_a_tensor_twice_reads_it_until_the_last() -> None:
    add = helper.make_node("Add", ["y", "y"], ["z"])
    graph = tiny(helper.make_node("Neg", ["x"], ["y"]), add)
    add = graph.nodes[1]
    graph.set_input(add, 0, "x")
    assert graph.consumers["y"] == [add]
    graph.set_input(add, 1, "x")
    assert graph.consumers["y"] == []
    assert len(graph.consumers["x"]) == 2


def test_renaming_makes_room() -> None:
    graph = tiny(helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["y"], ["z"]))
    graph.rename("z", "y")
    assert graph.outputs == ["y"]
    assert graph.nodes[1].input[0] == graph.nodes[0].output[0] == "y.source"
    assert_true(graph)


def test_nodes_come_in_order_whatever_the_file_has() -> None:
    graph = tiny(helper.make_node("Abs", ["y"], ["z"]), helper.make_node("Neg", ["x"], ["y"]))
    assert [node.op_type for node in graph.nodes] == ["Neg", "Abs"]


def test_a_circle_is_refused() -> None:
    with pytest.raises(ZottaError, match="has a cycle"):
        tiny(helper.make_node("Abs", ["y"], ["z"]), helper.make_node("Neg", ["z"], ["y"]))


def test_constants_are_folded_by_the_meaning_of_the_opset() -> None:
    graph = tiny(
        helper.make_node("Constant", [], ["c"], value_floats=[1.0, 4.0]),
        helper.make_node("Constant", [], ["axes"], value_ints=[1]),
        helper.make_node("Sqrt", ["c"], ["root"]),
        helper.make_node("Unsqueeze", ["root", "axes"], ["z"]),
    )
    np.testing.assert_array_equal(graph.constant("z"), [[1.0], [2.0]])
    assert graph.constant("x") is None


def test_a_constant_whose_node_was_replaced_is_computed_again() -> None:
    graph = tiny(helper.make_node("Constant", [], ["z"], value_float=1.0))
    assert graph.constant("z") == 1
    graph.replace(graph.nodes[0], [helper.make_node("Constant", [], ["z"], value_float=2.0)])
    assert graph.constant("z") == 2


def test_what_lies_behind_a_boundary_is_not_reached() -> None:
    graph = tiny(
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["z"]),
    )
    assert graph.reaching(["z"]) == {"z", "a", "b", "x"}
    assert graph.reaching(["z"], within={"z", "b", "x"}) == {"z", "b"}


def test_what_comes_after_an_input_comes_first() -> None:
    graph = tiny(helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Add", ["x", "y"], ["z"]))
    graph.reroute("x", "x.new")
    graph.insert_after("x", [helper.make_node("Abs", ["x"], ["x.new"])])
    assert [list(node.input) for node in graph.nodes] == [["x"], ["x.new"], ["x.new", "y"]]
    assert [node.op_type for node in graph.consumers["x"]] == ["Abs"]
