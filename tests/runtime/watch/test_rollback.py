"""Which updates may stand, and what a rollback does to the next ones."""

import numpy as np
import pytest

from zotta_edge.runtime.events import Event, Events, RolledBack
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.rollback import Rollback
from zotta_edge.runtime.watch.trust_region import Distance, TrustRegion

SOURCE = np.array([3.0, 4.0], np.float32)  # of norm 5


def rollback(events: Events | None = None, **settings: object) -> tuple[Rollback, TrustRegion]:
    chosen, events = Settings(**settings), events or Events()  # type: ignore[arg-type]
    region = TrustRegion(Distance(SOURCE, chosen, events), 1.0, chosen)
    return Rollback(region, chosen, events), region


def test_rollback_backs_off_and_recovers() -> None:
    events, received = Events(), list[Event]()
    events.subscribe(received.append)
    watch, region = rollback(events, max_step=0.1, max_distance=10.0, backoff=0.5)
    far = SOURCE + np.array([5, 0], np.float32)
    assert not watch.accepts(before=1.0, after=1.1)
    assert received == [RolledBack(1.0, 1.1)]
    assert region.bounded(SOURCE, far, 1)[0] == pytest.approx(3.25)  # half as far
    for _ in range(10):
        assert watch.accepts(before=1.0, after=0.9)
    assert region.bounded(SOURCE, far, 1)[0] == pytest.approx(3.5)


def test_an_objective_that_is_not_a_number_is_a_rise() -> None:
    assert not rollback()[0].accepts(before=1.0, after=float("nan"))


def test_tolerance() -> None:
    assert rollback(tolerance=0.2)[0].accepts(before=1.0, after=1.1)
    assert rollback(tolerance=0.2)[0].accepts(before=-1.0, after=-0.9)


def test_switched_off_it_accepts_everything() -> None:
    assert rollback(guard=False)[0].accepts(before=1.0, after=2.0)
