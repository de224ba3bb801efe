"""The ledger of passes."""

import pytest

from zotta_edge.runtime.methods.primed.budget import PassBudget
from zotta_edge.runtime.settings import Settings


def test_a_batch_earns_what_the_budget_exceeds_one_pass_by() -> None:
    budget = PassBudget(Settings(budget=1.25))
    budget.earn(16)
    assert budget.credit == pytest.approx(4)
    budget.spend(10)
    assert budget.credit == pytest.approx(-6)  # a debt, paid off by later batches


def test_a_quiet_stream_saves_so_much_and_no_more() -> None:
    budget = PassBudget(Settings(budget=2.0, savings=100.0))
    for _ in range(10):
        budget.earn(64)
    assert budget.credit == 100


def test_credit_goes_round() -> None:
    budget, other = (PassBudget(Settings()) for _ in range(2))
    budget.earn(7)
    other.restore(budget.state())
    assert other.credit == budget.credit
    other.reset()
    assert other.credit == 0
