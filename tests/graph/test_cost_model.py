"""The cost of a node: what it multiplies, and what it writes."""

import pytest

from zotta_edge.graph.cost_model import cost


@pytest.mark.parametrize(
    ("op", "inputs", "output", "attributes", "multiply_adds"),
    [
        ("MatMul", [(1, 7, 3), (3, 5)], (1, 7, 5), {}, 7 * 3 * 5),
        ("MatMulInteger", [(1, 7, 3), (3, 5)], (1, 7, 5), {}, 7 * 3 * 5 / 2),
        ("Gemm", [(3, 7), (3, 5)], (7, 5), {"transA": 1}, 7 * 3 * 5),
        ("Conv", [(1, 4, 9, 9), (8, 4, 3, 3)], (1, 8, 7, 7), {}, 8 * 7 * 7 * 4 * 9),
        ("Conv", [(1, 8, 9, 9), (8, 1, 3, 3)], (1, 8, 7, 7), {"group": 8}, 8 * 7 * 7 * 9),
        ("QLinearConv", [(), (), (), (8, 4, 3, 3)], (1, 8, 7, 7), {}, 8 * 7 * 7 * 4 * 9 / 2),
        ("ConvTranspose", [(1, 4, 5, 5), (4, 8, 2, 2)], (1, 8, 10, 10), {}, 4 * 25 * 8 * 4),
    ],
)
def test_cost_counts_multiply_adds(
    op: str,
    inputs: list[tuple[int, ...]],
    output: tuple[int, ...],
    attributes: dict[str, int],
    multiply_adds: float,
) -> None:
    elementwise = cost("Add", [output, output], [output], {})
    assert cost(op, inputs, [output], attributes) - elementwise == multiply_adds


def test_views_are_free() -> None:
    assert cost("Reshape", [(4, 4), (1,)], [(16,)], {}) == 0
