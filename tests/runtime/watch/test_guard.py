"""What the guards are counted by."""

from zotta_edge.runtime.events import Collapsed, Events, RolledBack, StreamChanged
from zotta_edge.runtime.watch.guard import GuardCounts


def test_only_what_a_guard_did_is_counted() -> None:
    events = Events()
    counts = GuardCounts(events)
    for event in (RolledBack(1, 2), RolledBack(1, 3), Collapsed(3, 0.1), StreamChanged(1.0)):
        events.report(event)
    expected = {"shortened": 0, "bounded": 0, "rollback": 2, "collapse": 1, "returned": 0}
    assert counts.to_dict() == expected


def test_a_reset_keeps_the_counts_and_a_state_carries_them() -> None:
    events = Events()
    counts, other = GuardCounts(events), GuardCounts(Events())
    events.report(RolledBack(1, 2))
    counts.reset()
    other.restore(counts.state())
    assert other.to_dict() == counts.to_dict()
    assert other.to_dict()["rollback"] == 1
